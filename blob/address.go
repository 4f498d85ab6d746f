package blob

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// ErrAddress reports an address that names no store.
var ErrAddress = errors.New("invalid address of a store")

var (
	schemesMu sync.RWMutex
	schemes   = map[string]func(ctx context.Context, address string) (Store, error){} // guarded by schemesMu
)

// Register makes open the function that opens addresses of a scheme, such as "s3". A
// package that implements a store calls it when it is initialised, so a program imports
// such a package to open its addresses. It panics if the scheme is registered already.
func Register(scheme string, open func(ctx context.Context, address string) (Store, error)) {
	schemesMu.Lock()
	defer schemesMu.Unlock()
	if schemes[scheme] != nil {
		panic(fmt.Sprintf("blob: the scheme %q is registered twice", scheme))
	}
	schemes[scheme] = open
}

// OpenAddress returns the store at an address: a path, which is that of a folder or of a
// single file, or a URL whose scheme is registered, such as file:///path or
// s3://bucket/prefix. The errors wrap ErrAddress if the address is invalid. They do not
// repeat its query or its user, which may hold secrets.
func OpenAddress(ctx context.Context, address string) (Store, error) {
	scheme := Scheme(address)
	schemesMu.RLock()
	open := schemes[scheme]
	var known []string
	for s := range schemes {
		known = append(known, s)
	}
	schemesMu.RUnlock()
	if open == nil {
		slices.Sort(known)
		return nil, fmt.Errorf("%w: %s: this program knows the schemes %s", ErrAddress, Redact(address), strings.Join(known, ", "))
	}
	return open(ctx, address)
}

// Scheme returns the scheme of an address. A path has the scheme "file".
func Scheme(address string) string {
	if scheme, _, ok := strings.Cut(address, "://"); ok {
		return scheme
	}
	return "file"
}

// Redact returns an address without what may be a secret: its user and its query.
func Redact(address string) string {
	if Scheme(address) == "file" {
		return address
	}
	u, err := url.Parse(address)
	if err != nil {
		return Scheme(address) + "://…"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

// JoinAddress returns the address of something below an address: a path or a URL whose
// query is kept.
func JoinAddress(address string, elem ...string) string {
	if len(elem) == 0 {
		return address
	}
	rest := strings.Join(elem, "/")
	if Scheme(address) == "file" && !strings.Contains(address, "://") {
		return strings.TrimRight(address, "/") + "/" + rest
	}
	before, query, found := strings.Cut(address, "?")
	out := strings.TrimRight(before, "/") + "/" + (&url.URL{Path: rest}).EscapedPath()
	if found {
		out += "?" + query
	}
	return out
}
