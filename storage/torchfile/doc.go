// Package torchfile reads and writes checkpoints that are one file of
// torch.save (.pt, .pth, .bin, .ckpt), and reads those that are several with an
// index, as Hugging Face's pytorch_model.bin.index.json. What the bytes mean is
// package torchsave's to know; this package makes names of them. The contract is
// that of package storage; what the names are is at Open.
package torchfile
