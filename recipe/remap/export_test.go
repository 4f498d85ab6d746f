package remap

// MaxWork is the number of steps of a Prover.
const MaxWork = maxWork

// Spend counts steps that other proofs took.
func (v *Prover) Spend(steps int) error { return v.spend(steps) }
