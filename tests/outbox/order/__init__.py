"""Order per key, whichever way keys are shared out."""
