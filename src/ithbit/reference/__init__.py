"""The same models from the libraries the paper names: test oracle and baseline for speed."""
