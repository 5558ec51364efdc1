"""A trained model that runs in an HTML page: one file to click, with no framework or network."""
