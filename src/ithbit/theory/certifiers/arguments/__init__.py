"""Arguments made for one kind of construction."""
