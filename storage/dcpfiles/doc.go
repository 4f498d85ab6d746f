// Package dcpfiles is what the checkpoints of PyTorch's distributed checkpoint
// and of hyper_parallel have in common: a .metadata file, or else one of each
// rank, beside data files that they place chunks and values in. It knows neither
// the names of the other files, which a Format tells, nor what is in data files.
// The contract of reading is at Format, that of values to be written at
// LayValue.
package dcpfiles
