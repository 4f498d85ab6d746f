package pickle

import (
	"fmt"
	"strings"
)

// Class is a class whose instances become records with fields in a Graph,
// instead of objects with a dict.
type Class struct {
	// Names are the qualified names under which it is known, the best one first.
	Names []string
	// Fields are the names that its state may have.
	Fields []string
	// Open says that what a state has beyond Fields is dropped, be it under a
	// name or at the end of a tuple. Otherwise it is an error, unless it has a
	// name and is None.
	Open bool
}

// Unset is a field of a record that its state did not have.
const Unset = Cell(wide)

// schema is classes made ready for the machine.
type schema struct {
	classes []Class
	byName  map[[2]string]int
	syms    map[string]int32
	// fields[class][sym] is the position of the field, or -1.
	fields [][]int8
}

func newSchema(classes []Class) *schema {
	if len(classes) > maxClasses {
		panic(fmt.Sprintf("pickle: %d classes in a schema, at most %d", len(classes), maxClasses))
	}
	s := &schema{classes: classes, byName: map[[2]string]int{}, syms: map[string]int32{}}
	for i, c := range classes {
		for _, n := range c.Names {
			s.byName[splitName(n)] = i
		}
		for _, f := range c.Fields {
			if _, ok := s.syms[f]; !ok {
				s.syms[f] = int32(len(s.syms))
			}
		}
	}
	for _, c := range classes {
		row := make([]int8, len(s.syms))
		for i := range row {
			row[i] = -1
		}
		for i, f := range c.Fields {
			row[s.syms[f]] = int8(i)
		}
		s.fields = append(s.fields, row)
	}
	return s
}

// class returns the number of the class of that name, or -1.
func (s *schema) class(module, name string) int {
	if i, ok := s.byName[[2]string{module, name}]; ok {
		return i
	}
	return -1
}

// splitName cuts a qualified name at its last dot.
func splitName(qualified string) [2]string {
	i := strings.LastIndexByte(qualified, '.')
	return [2]string{qualified[:max(i, 0)], qualified[i+1:]}
}
