"""What several tests share: stores made up, runs trained, layers with known faults, browsers."""
