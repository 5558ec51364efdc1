"""A trained run or a construction as an ordinary `torch.nn.Module`."""
