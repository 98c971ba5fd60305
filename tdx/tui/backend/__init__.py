"""Worker processes, which import torch so that the app does not have to."""
