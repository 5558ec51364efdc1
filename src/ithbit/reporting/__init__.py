"""Reports on records: tables, comparison, figures and one page.

This package reads run folders and never trains; nothing in it imports torch.
"""
