package web

import (
	"embed"
	"io/fs"
	"path"
	"strings"
)

// dist has the built pages. 'make web' builds them from web/src.
//
//go:embed all:dist
var dist embed.FS

// asset is a file of the page.
type asset struct {
	data  []byte
	kind  string // its content type
	fixed bool   // its name has a hash of its content, so it never changes
}

// contentTypes are the content types of assets. They do not depend on the system.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon", ".woff2": "font/woff2",
	".json": "application/json", ".txt": "text/plain; charset=utf-8",
}

// loadAssets returns the files of the page by their paths in an address. The page itself is
// also at "/". Requests are looked up here: no path of a request reaches a file system.
func loadAssets(files fs.FS) (map[string]asset, error) {
	out := map[string]asset{}
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		kind, ok := contentTypes[path.Ext(name)]
		if !ok {
			return nil // not a part of the page
		}
		data, err := fs.ReadFile(files, name)
		out["/"+name] = asset{data, kind, strings.HasPrefix(name, "assets/")}
		return err
	})
	out["/"] = out["/index.html"]
	return out, err
}
