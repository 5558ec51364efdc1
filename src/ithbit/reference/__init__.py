"""The same models from the libraries the paper names: oracle of the tests, yardstick of speed."""
