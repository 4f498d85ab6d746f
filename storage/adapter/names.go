package adapter

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
)

// prefix is before the names of the modules of the base in an adapter.
const prefix = "base_model.model."

// module is the tensors that an adapter has for a module of the base.
type module struct {
	name      string
	a, b      *meta.Entry // the factors of the product
	embedding bool
	bias      *meta.Entry // of b
	magnitude *meta.Entry // of DoRA
}

// tensors are the tensors of an adapter.
type tensors struct {
	modules map[string]*module
	// replaced are the tensors of the base that the adapter has as a whole, by their names in the
	// base.
	replaced map[string]*meta.Entry
	// rows are the rows of tokens that the adapter has, by the names of their modules.
	rows    map[string]*meta.Entry
	adapter string // the name of the adapter, if the names have it
}

// The names of the tensors of an adapter. A name of the adapter may follow the name of the factor.
var (
	factorName    = regexp.MustCompile(`^(.+)\.lora_([AB])(?:\.([^.]+))?\.(weight|bias)$`)
	embeddingName = regexp.MustCompile(`^(.+)\.lora_embedding_([AB])(?:\.([^.]+))?$`)
	magnitudeName = regexp.MustCompile(`^(.+)\.lora_magnitude_vector(?:\.([^.]+?))??(?:\.weight)?$`)
	baseName      = regexp.MustCompile(`^(.+)\.base_layer\.(weight|bias)$`)
	tokensName    = regexp.MustCompile(`^(.+)\.token_adapter\.trainable_tokens_delta(?:\.([^.]+))?$`)
	savedName     = regexp.MustCompile(`^(.+)\.modules_to_save(?:\.([^.]+))?\.(weight|bias)$`)
)

// sortNames returns the tensors of an adapter by what they are. before is in front of all of its
// names; names without it are not the adapter's.
func sortNames(md *meta.Metadata, before string) (*tensors, error) {
	t := &tensors{modules: map[string]*module{}, replaced: map[string]*meta.Entry{}, rows: map[string]*meta.Entry{}}
	for i := range md.Entries {
		e := &md.Entries[i]
		name, ok := strings.CutPrefix(e.FQN, before)
		if !ok {
			continue
		}
		if e.Tensor == nil {
			return nil, fmt.Errorf("%w: %q is not a tensor", ErrAdapter, e.FQN)
		}
		if name, ok = strings.CutPrefix(name, prefix); !ok {
			return nil, fmt.Errorf("%w: the name %q does not begin with %s", ErrAdapter, e.FQN, prefix)
		}
		if err := t.add(name, e); err != nil {
			return nil, err
		}
	}

	if len(t.modules)+len(t.replaced)+len(t.rows) == 0 {
		return nil, fmt.Errorf("%w: it has no tensors", ErrAdapter)
	}
	return t, nil
}

// add adds a tensor.
func (t *tensors) add(name string, e *meta.Entry) error {
	if m := factorName.FindStringSubmatch(name); m != nil {
		to := t.module(m[1])
		switch {
		case m[2] == "A" && m[4] == "weight":
			return t.set(&to.a, e, m[3])
		case m[2] == "B" && m[4] == "weight":
			return t.set(&to.b, e, m[3])
		case m[2] == "B":
			return t.set(&to.bias, e, m[3])
		}
	}
	if m := embeddingName.FindStringSubmatch(name); m != nil {
		to := t.module(m[1])
		to.embedding = true
		if m[2] == "A" {
			return t.set(&to.a, e, m[3])
		}
		return t.set(&to.b, e, m[3])
	}
	if m := magnitudeName.FindStringSubmatch(name); m != nil {
		adapter := m[2]
		if adapter == "weight" {
			adapter = ""
		}
		return t.set(&t.module(m[1]).magnitude, e, adapter)
	}

	if strings.Contains(name, ".lora_") {
		return fmt.Errorf("%w: %q is a tensor of a kind that is not known", ErrAdapter, e.FQN)
	}
	if m := tokensName.FindStringSubmatch(name); m != nil {
		return t.setIn(t.rows, m[1], e, m[2])
	}
	adapter := ""
	if m := baseName.FindStringSubmatch(name); m != nil {
		name = m[1] + "." + m[2]
	} else if m := savedName.FindStringSubmatch(name); m != nil {
		name, adapter = m[1]+"."+m[3], m[2]
	}
	return t.setIn(t.replaced, name, e, adapter)
}

// setIn sets a tensor of an adapter in a map.
func (t *tensors) setIn(in map[string]*meta.Entry, name string, e *meta.Entry, adapter string) error {
	to := in[name]
	err := t.set(&to, e, adapter)
	in[name] = to
	return err
}

// module returns the module of that name, and makes it if it is new.
func (t *tensors) module(name string) *module {
	m := t.modules[name]
	if m == nil {
		m = &module{name: name}
		t.modules[name] = m
	}
	return m
}

// set sets a tensor of an adapter. There may be one of its kind, and one adapter.
func (t *tensors) set(to **meta.Entry, e *meta.Entry, adapter string) error {
	if *to != nil {
		return fmt.Errorf("%w: %q and %q are the same tensor", ErrAdapter, (*to).FQN, e.FQN)
	}
	if adapter != "" && t.adapter != "" && adapter != t.adapter {
		return fmt.Errorf("%w: there are several, %q and %q", ErrAdapter, t.adapter, adapter)
	}
	if adapter != "" {
		t.adapter = adapter
	}
	*to = e
	return nil
}
