package cli

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/web"
)

// checkLinks returns an error if the checkpoint at an address is in the file system, and it or a
// file in its folder is a link that leads out of root, the folder that the user has given. So
// 'cairn web' does not show other files of the user, whoever has made the folder.
func checkLinks(root, address string) error {
	top, local, err := file.LocalPath(root)
	if err != nil || !local {
		return nil
	}
	path, local, err := file.LocalPath(address)
	if err != nil || !local {
		return nil
	}
	if top, err = filepath.EvalSymlinks(top); err != nil {
		return err
	}
	inside := []string{top}
	for _, snapshots := range []string{top, filepath.Dir(top)} {
		if filepath.Base(snapshots) == "snapshots" { // of a model in the cache of the Hugging Face hub
			inside = append(inside, filepath.Join(filepath.Dir(snapshots), "blobs"))
		}
	}

	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if !below(real, inside) {
		return leadsOut(path, real)
	}
	return filepath.WalkDir(real, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink == 0 {
			return nil // the checkpoint cannot be opened if it needs that file
		}
		if to, err := filepath.EvalSymlinks(path); err == nil && !below(to, inside) {
			return leadsOut(path, to)
		}
		return nil
	})
}

// below reports whether a path is one of some folders, or below one.
func below(path string, folders []string) bool {
	for _, f := range folders {
		if rel, err := filepath.Rel(f, path); err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
			return true
		}
	}
	return false
}

func leadsOut(link, to string) error {
	return &web.Error{
		Kind:    web.KindForbidden,
		Message: fmt.Sprintf("%s leads to %s, outside of the folder that was given", link, to),
		Hint:    "'cairn web PATH --follow-links' follows links, or give the other folder as PATH",
	}
}
