// Package torchsave reads and writes the files of torch.save, alone or inside
// of a range of a larger file: the zip form of today and, for reading, the
// stream that PyTorch wrote before 1.6. It knows nothing of checkpoints and
// runs nothing: the pickle inside becomes plain data, and tensors become places
// in the file. The contract of reading is at Open, that of writing at Lay.
package torchsave
