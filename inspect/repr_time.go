package inspect

import (
	"github.com/cairn-ckpt/cairn/value"
)

// timeClass returns the renderers of module datetime. The objects are in the
// normal form of package pickle.
func timeClass(name string) renderer {
	switch name {
	case "date", "time", "datetime":
		return (*reprer).moment
	case "timedelta":
		return (*reprer).timedelta
	case "timezone":
		return (*reprer).timezone
	}
	return nil
}

// moment is numbers, and for times the fold and the zone.
func (r *reprer) moment(o *value.Object) bool {
	if len(o.Args) == 0 || !allInts(o.Args) {
		return false
	}
	return r.named(o, "fold", "tzinfo")
}

func (r *reprer) timedelta(o *value.Object) bool {
	if !allInts(o.Args) || len(o.Args)+len(o.Kwargs) == 0 {
		return false
	}
	return r.named(o, "days", "seconds", "microseconds")
}

// named adds a call as it is written, with the named arguments in that order.
// There must be no others.
func (r *reprer) named(o *value.Object, names ...string) bool {
	var there []string
	for _, name := range names {
		if _, ok := o.Kwargs[name]; ok {
			there = append(there, name)
		}
	}
	if len(there) != len(o.Kwargs) || hasContents(o) {
		return false
	}
	r.seq(o.QualifiedName()+"(", o.Args, "")
	if len(o.Args) > 0 && len(there) > 0 {
		r.text(", ")
	}
	r.each(len(there), func(i int) {
		r.text(there[i] + "=")
		r.value(o.Kwargs[there[i]])
	})
	r.text(")")
	return true
}

// timezone is the difference to UTC and maybe a name.
func (r *reprer) timezone(o *value.Object) bool {
	if len(o.Args) == 0 || len(o.Args) > 2 || !onlyArgs(o) {
		return false
	}
	d, ok := o.Args[0].(*value.Object)
	if !ok || d.QualifiedName() != "datetime.timedelta" {
		return false
	}
	if zero, ok := only[int64](d); ok && zero == 0 && len(o.Args) == 1 {
		r.text("datetime.timezone.utc")
		return true
	}
	r.seq("datetime.timezone(", o.Args, ")")
	return true
}
