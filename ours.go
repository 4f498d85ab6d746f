package cairn

import (
	"errors"
	"path/filepath"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
)

// ours are the saves and loads of this process. Its later saves may replace them.
var ours places

// places has the ids of saves, by the place where they are or may be. The zero value is ready to use.
type places struct {
	mu   sync.Mutex
	list []place // guarded by mu; the last one was used last
}

// place has the ids of the saves of this process at an address: the last one that is complete, and
// later ones that are pending or uncertain.
type place struct {
	address string
	ids     []string
}

// maxPlaces bounds places.list. A job that saves each step to a folder of its own needs none of them.
const maxPlaces = 1024

// begun notes a save that begins. A save that is asked for before this one is over may replace it.
func (p *places) begun(address, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := place{address: address}
	if i := p.find(address); i >= 0 {
		at = p.list[i]
		p.list = slices.Delete(p.list, i, i+1)
	}
	at.ids = append(slices.Clone(at.ids), id)
	p.list = append(p.list, at)
	if len(p.list) > maxPlaces {
		p.list = slices.Delete(p.list, 0, 1)
	}
}

// over notes the outcome of a save that has begun.
func (p *places) over(address, id string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.find(address)
	if i < 0 || errors.Is(err, ErrUncertain) {
		return
	}
	ids := p.list[i].ids
	n := slices.Index(ids, id)
	switch {
	case n < 0:
	case err == nil:
		p.list[i].ids = slices.Clone(ids[n:])
	default:
		p.list[i].ids = slices.Delete(slices.Clone(ids), n, n+1)
	}
}

// complete notes a checkpoint that was saved or loaded.
func (p *places) complete(address, id string) {
	p.begun(address, id)
	p.over(address, id, nil)
}

// at returns the ids of the saves at some addresses. It is never nil.
func (p *places) at(addresses ...string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []string{}
	for _, a := range addresses {
		if i := p.find(a); i >= 0 {
			out = append(out, p.list[i].ids...)
		}
	}
	return out
}

// find returns the index of an address, or -1. The caller holds mu.
func (p *places) find(address string) int {
	return slices.IndexFunc(p.list, func(at place) bool { return at.address == address })
}

// placeOf returns the address of a store in places.
func placeOf(s blob.Store) string {
	if s == nil {
		return ""
	}
	if address, ok := addressOf(s); ok {
		return placeAt(address)
	}
	return s.String()
}

// placeAt returns an address in the form of placeOf.
func placeAt(address string) string {
	path, local, err := file.LocalPath(address)
	if err != nil || !local {
		return address
	}
	if path, err = filepath.Abs(path); err != nil {
		return address
	}
	for dir := path; ; dir = filepath.Dir(dir) { // the folder may not exist yet
		real, err := filepath.EvalSymlinks(dir)
		if err == nil {
			return filepath.Join(real, path[len(dir):])
		}
		if dir == filepath.Dir(dir) {
			return path
		}
	}
}

// noteBegun notes a save that waits for the one before it.
func (p *Pending) noteBegun(id string) {
	p.saveID = id
	ours.begun(placeOf(p.store), id)
	if p.remote != "" {
		ours.begun(placeAt(p.remote), id)
	}
}

// noteOurs notes a save to store that is over. id is its id if report is nil.
func noteOurs(store blob.Store, report *SaveReport, id string, err error) {
	switch {
	case err == nil:
		ours.complete(placeOf(store), report.SaveID)
	case errors.Is(err, ErrUncertain):
		ours.begun(placeOf(store), id)
	}
}

// replaces returns storage.WriteOptions.Replaces of a save to store, which is uploaded to the address
// remote if that is set.
func (o *SaveOptions) replaces(store blob.Store, remote string) []string {
	if o.Overwrite || o.FailIfExists || o.ofRun || store == nil {
		return nil
	}
	if remote == "" {
		return ours.at(placeOf(store))
	}
	return ours.at(placeOf(store), placeAt(remote))
}
