// Command typecheck checks the types of packages and of their tests, for the system that
// GOOS and GOARCH name. It reads the sources of all dependencies and does not compile them,
// so that it takes seconds even for a system without entries in the build cache.
//
//	GOOS=windows typecheck [-tags TAGS] PACKAGE...
package main

import (
	"flag"
	"fmt"
	"os"

	"golang.org/x/tools/go/packages"
)

func main() {
	tags := flag.String("tags", "", "build tags, as for go build")
	flag.Parse()
	pkgs, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax |
			packages.NeedCompiledGoFiles | packages.NeedTypesSizes,
		Tests:      true,
		BuildFlags: []string{"-tags=" + *tags},
	}, flag.Args()...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(2)
	}
	if len(pkgs) == 0 {
		fmt.Fprintln(os.Stderr, "typecheck: no package matches")
		os.Exit(2)
	}
	if packages.PrintErrors(pkgs) > 0 {
		os.Exit(1)
	}
}
