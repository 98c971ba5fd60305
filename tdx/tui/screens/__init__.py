"""The main screen and the dialogs."""
