// Package pickle reads and writes Python's pickles without Python: it builds
// plain data of package value, and never looks up, imports or calls what a
// pickle names. It knows nothing of checkpoints, apart from what its callers
// tell it about classes. The contract is at Decode and Encode.
package pickle
