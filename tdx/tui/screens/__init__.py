"""The main screen and generic dialogs."""
