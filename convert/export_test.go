package convert

// SetStep makes Publish call fn before each of its steps.
func (p *Place) SetStep(fn func(name string) error) { p.step = fn }
