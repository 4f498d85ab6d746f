package cairn

import (
	"slices"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// ours are the saves and loads of this process. Its later saves may replace them.
var ours ownSaves

// ownSaves has the ids of saves, by the address where they are or may be. The zero value is ready to use.
type ownSaves struct {
	mu   sync.Mutex
	list []addressSaves // guarded by mu; the last one was used last
}

// addressSaves has the ids of the saves of this process at an address. If one was completed or loaded, it is
// the first, and "" is the second, for a checkpoint of an unknown save. The others are pending or have
// failed, which their commits may have outlived.
type addressSaves struct {
	address string
	ids     []string
}

const (
	// maxPlaces bounds ownSaves.list. A job that saves each step to a folder of its own needs none of them.
	maxPlaces = 1024
	// maxIDs bounds addressSaves.ids. More are of saves that have failed.
	maxIDs = 64
)

// begun notes a save that begins. A later save may replace it, whatever becomes of it.
func (p *ownSaves) begun(address, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note(address, func(ids []string) []string {
		if len(ids) == maxIDs {
			ids = slices.Delete(ids, 2, 3)
		}
		return append(ids, id)
	})
}

// saved notes that a save which has begun is complete.
func (p *ownSaves) saved(address, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note(address, func(ids []string) []string {
		if n := slices.Index(ids, id); n >= 0 {
			ids = append([]string{id, ""}, ids[n+1:]...)
		}
		return ids
	})
}

// complete notes a checkpoint that was saved or loaded, maybe while other saves are under way.
func (p *ownSaves) complete(address, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note(address, func(ids []string) []string {
		ids = slices.DeleteFunc(ids, func(of string) bool { return of == id || of == "" })
		if len(ids) > maxIDs-2 {
			ids = ids[:maxIDs-2]
		}
		return append([]string{id, ""}, ids...)
	})
}

// note changes the ids of a place, which becomes the last one used. The caller holds mu.
func (p *ownSaves) note(address string, change func(ids []string) []string) {
	at := addressSaves{address: address}
	if i := p.find(address); i >= 0 {
		at = p.list[i]
		p.list = slices.Delete(p.list, i, i+1)
	}
	if at.ids = change(at.ids); len(at.ids) > 0 {
		p.list = append(p.list, at)
	}
	if len(p.list) > maxPlaces {
		p.list = slices.Delete(p.list, 0, 1)
	}
}

// at returns the ids of the saves at some addresses. It is never nil.
func (p *ownSaves) at(addresses ...string) []string {
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
func (p *ownSaves) find(address string) int {
	return slices.IndexFunc(p.list, func(at addressSaves) bool { return at.address == address })
}

// placeOf returns the address of a store in places.
func placeOf(s blob.Store) string {
	if single, ok := s.(*blob.Single); ok {
		return placeAt(blob.JoinAddress(placeOf(single.Unwrap()), single.Name()))
	}
	if address, ok := addressOf(s); ok {
		return placeAt(address)
	}
	return s.String()
}

// placeIn returns the address of a checkpoint in a folder: of its file, if others may be beside it.
func placeIn(folder string, f storage.Format) string {
	if name := formats.FileOf(f); name != "" {
		return blob.JoinAddress(folder, name)
	}
	return folder
}

// placeAt returns an address in the form of placeOf.
func placeAt(address string) string {
	path, local, err := file.LocalPath(address)
	if err != nil || !local {
		return strings.TrimRight(address, "/")
	}
	return file.RealPath(path)
}

// noteOurs notes a save to store that is over. id is its id if report is nil.
func (o *SaveOptions) noteOurs(store blob.Store, report *SaveReport, id string) {
	place := placeIn(placeOf(store), o.format())
	if report == nil {
		ours.begun(place, id)
	} else {
		ours.complete(place, report.SaveID)
	}
}

// replaces returns the ids of the saves that a save to a folder may replace, see
// storage.WriteOptions.Replaces.
func (o *SaveOptions) replaces(folder string) []string {
	if o.Overwrite || o.FailIfExists || o.ofRun {
		return nil
	}
	return ours.at(slices.Compact([]string{folder, placeIn(folder, o.format())})...)
}

// replacesRemote returns the ids of the saves that the upload of a save may replace.
func (o *SaveOptions) replacesRemote(folder, remote string) []string {
	ids := o.replaces(folder) // it is uploaded after earlier saves, and their uploads may have failed
	if ids == nil {
		return nil
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return id == "" })
	return append(ids, o.replaces(placeAt(remote))...)
}
