package meta

// Inside returns the tensors that stood inside of a value, by their names, with
// the name of that value: those whose paths lead through the path of a value.
// The value refers to them by their names; see value.Ref.
func (m *Metadata) Inside() map[string]string {
	values := map[string]*Entry{} // by the names that their paths spell
	for i := range m.Entries {
		if e := &m.Entries[i]; e.Bytes != nil && e.Path != nil {
			values[e.Path.FQN()] = e
		}
	}
	out := map[string]string{}
	if len(values) == 0 {
		return out
	}
	for i := range m.Entries {
		e := &m.Entries[i]
		if e.Tensor == nil || len(e.Path) < 2 {
			continue
		}
		spelled, n := e.Path.FQN(), 0
		for j, s := range e.Path[:len(e.Path)-1] {
			n += len(s.String())
			if v := values[spelled[:n]]; v != nil && v.Path.Equal(e.Path[:j+1]) {
				out[e.FQN] = v.FQN
				break
			}
			n++ // the dot
		}
	}
	return out
}
