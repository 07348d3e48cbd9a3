"""The prediction: moments -> predict -> explain -> correct -> select."""
