package storage

// VerifyReport says what a full check of a checkpoint found.
type VerifyReport struct {
	// Files, Chunks and Bytes count what was checked.
	Files  int   `json:"files"`
	Chunks int64 `json:"chunks"`
	Bytes  int64 `json:"bytes"`
	// Unsummed is how many of the bytes of tensors and values have no checksum in
	// this format: they could be read, and nobody can say more.
	Unsummed int64 `json:"bytes_without_checksum"`
	// Notes are meta.Storage.Notes: what the format does not let any reader check.
	Notes []string `json:"notes,omitempty"`
	// Problems are all that is wrong. None: the checkpoint is whole.
	Problems []VerifyProblem `json:"problems"`
}

// VerifyProblem is one thing that is wrong with a checkpoint.
type VerifyProblem struct {
	File string `json:"file"`
	// FQN is the name that is damaged. Empty: the file as a whole, and FQNs are the
	// names that cannot be read because of it, if they are known.
	FQN  string   `json:"fqn,omitempty"`
	FQNs []string `json:"fqns,omitempty"`
	Text string   `json:"problem"`
}
