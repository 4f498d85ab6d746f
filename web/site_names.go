package web

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
)

// names are the names of a choice, also as the answer of /api/names.
type names struct {
	*inspect.Names
	all  int // names of the checkpoint
	json []byte
}

// newNamed returns the names of each choice, not computed yet.
func newNamed() map[inspect.Choice]*lazy[*names] {
	return map[inspect.Choice]*lazy[*names]{inspect.OnlyWeights: {}, inspect.OnlyOptimizer: {}, inspect.AllRoles: {}}
}

// names returns the names of a choice. If there are no weights, OnlyWeights has all names.
func (h *handle) names(ctx context.Context, of inspect.Choice) (*names, error) {
	return h.named[of].get(ctx, h.start, func() (*names, error) {
		md, err := h.metadata(h.site.ctx)
		if err != nil {
			return nil, err
		}
		roles, err := h.roles(h.site.ctx)
		if err != nil {
			return nil, err
		}
		ties, err := h.ties(h.site.ctx)
		if err != nil {
			return nil, err
		}
		n := inspect.NewNames(of.Among(md, roles), ties)
		return &names{n, len(roles), appendNames(n, roles)}, nil
	})
}

// appendNames returns the answer of /api/names: the names, and how many each choice has.
func appendNames(n *inspect.Names, roles []inspect.Role) []byte {
	var weights, optimizer int
	for _, r := range roles {
		switch r {
		case inspect.Weights:
			weights++
		case inspect.Optimizer:
			optimizer++
		}
	}
	b := fmt.Appendf(nil, `{"counts":{"weights":%d,"optimizer":%d,"all":%d},`, weights, optimizer, len(roles))
	at := len(b)
	b = n.AppendJSON(b)
	return append(b[:at], b[at+1:]...) // without the bracket of the names
}

// roles are the roles of all names.
func (h *handle) roles(ctx context.Context) ([]inspect.Role, error) {
	return h.role.get(ctx, h.start, func() ([]inspect.Role, error) {
		md, err := h.metadata(h.site.ctx)
		if err != nil {
			return nil, err
		}
		roles := make([]inspect.Role, len(md.Entries))
		for i := range md.Entries {
			roles[i] = inspect.RoleOf(&md.Entries[i])
		}
		return roles, nil
	})
}

// ties are Metadata.Ties.
func (h *handle) ties(ctx context.Context) (map[string]string, error) {
	return h.tied.get(ctx, h.start, func() (map[string]string, error) {
		md, err := h.metadata(h.site.ctx)
		if err != nil {
			return nil, err
		}
		return md.Ties(), nil
	})
}

// names answers /api/names.
func (s *Site) names(ctx context.Context, q *query) (json.RawMessage, error) {
	n, err := s.namesOf(ctx, q)
	if err != nil {
		return nil, err
	}
	return n.json, nil
}

func (s *Site) namesOf(ctx context.Context, q *query) (*names, error) {
	of := q.of()
	return ofCheckpoint(ctx, s, q, func(h *handle) (*names, error) { return h.names(ctx, of) })
}

// related are the names that belong to a name.
type related struct {
	// Before and After are the names beside it in natural order.
	Before *string `json:"before,omitempty"`
	After  *string `json:"after,omitempty"`
	// Ties are the other names of a tensor that the checkpoint stores once under several names.
	Ties []string `json:"ties"`
}

func (h *handle) related(ctx context.Context, md *meta.Metadata, name string) (related, error) {
	out := related{Ties: []string{}}
	before, after := inspect.Beside(md, name)
	if before != nil {
		out.Before = &before.FQN
	}
	if after != nil {
		out.After = &after.FQN
	}

	ties, err := h.ties(ctx)
	if err != nil || len(ties) == 0 {
		return out, err
	}
	first, ok := ties[name]
	if !ok {
		first = name
	}
	for i := range md.Entries {
		if n := md.Entries[i].FQN; n != name && (n == first || ties[n] == first) {
			out.Ties = append(out.Ties, n)
		}
	}
	return out, nil
}
