// Package torchdcp reads and writes the checkpoints of PyTorch's distributed
// checkpoint (torch.distributed.checkpoint): a .metadata file beside .distcp
// files of torch.save records. It runs no pickle and knows nothing of Python:
// what it cannot express it refuses by name. The contract of reading is at Open,
// that of writing at Writer.
package torchdcp
