package dcpmeta

// Encode returns.
func Encode(d *Document) ([]byte, error) { return nil, ErrInvalid }
