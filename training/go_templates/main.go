// Renders the templates of testdata/go_templates.json with Go's own text/template, and writes what they give as
// "expected". The values have the names and types that Ollama gives to its templates.
//
// go run training/go_templates/main.go testdata/go_templates.json
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
)

func jsonText(value any) string {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err)
	}
	return strings.TrimSuffix(buffer.String(), "\n")
}

type object map[string]any

func (o object) String() string { return jsonText(o) }

type property struct {
	Type        string `json:"type,omitempty"`
	Items       any    `json:"items,omitempty"`
	Description string `json:"description,omitempty"`
	Enum        []any  `json:"enum,omitempty"`
}

type parameters struct {
	Type       string              `json:"type"`
	Required   []string            `json:"required,omitempty"`
	Properties map[string]property `json:"properties"`
}

func (p parameters) String() string { return jsonText(p) }

type toolFunction struct {
	Name        string     `json:"name"`
	Description string     `json:"description,omitempty"`
	Parameters  parameters `json:"parameters"`
}

func (f toolFunction) String() string { return jsonText(f) }

type tool struct {
	Type     string       `json:"type"`
	Function toolFunction `json:"function"`
}

func (t tool) String() string { return jsonText(t) }

type tools []tool

func (t tools) String() string { return jsonText([]tool(t)) }

type call struct {
	Function struct {
		Name      string `json:"name"`
		Arguments object `json:"arguments"`
	} `json:"function"`
}

type message struct {
	Role      string `json:"role"`
	Content   string `json:"content"`
	Thinking  string `json:"thinking,omitempty"`
	ToolCalls []call `json:"tool_calls,omitempty"`
	ToolName  string `json:"name,omitempty"`
}

type testCase struct {
	Name     string    `json:"name"`
	Template string    `json:"template"`
	Messages []message `json:"messages"`
	Tools    tools     `json:"tools,omitempty"`
	Think    *bool     `json:"think,omitempty"`
	Effort   string    `json:"effort,omitempty"`
	Expected string    `json:"expected"`
}

// The messages with those of one role in a row as one, and what the system says.
func joined(messages []message) (string, []*message) {
	var system []string
	var all []*message
	for _, m := range messages {
		last := len(all) - 1
		if last >= 0 && all[last].Role == m.Role && m.Role != "tool" {
			all[last].Content += "\n\n" + m.Content
		} else {
			all = append(all, &m)
		}
	}
	for _, m := range all {
		if m.Role == "system" {
			system = append(system, m.Content)
		}
	}
	return strings.Join(system, "\n\n"), all
}

// Whether a node is or has a field of this name.
func has(node parse.Node, name string) bool {
	list := func(list *parse.ListNode) bool {
		if list == nil {
			return false
		}
		for _, node := range list.Nodes {
			if has(node, name) {
				return true
			}
		}
		return false
	}
	branch := func(b *parse.BranchNode) bool { return has(b.Pipe, name) || list(b.List) || list(b.ElseList) }
	switch n := node.(type) {
	case *parse.ListNode:
		return list(n)
	case *parse.ActionNode:
		return has(n.Pipe, name)
	case *parse.TemplateNode:
		return n.Pipe != nil && has(n.Pipe, name)
	case *parse.IfNode:
		return branch(&n.BranchNode)
	case *parse.WithNode:
		return branch(&n.BranchNode)
	case *parse.RangeNode:
		return branch(&n.BranchNode)
	case *parse.PipeNode:
		for _, command := range n.Cmds {
			for _, argument := range command.Args {
				if has(argument, name) {
					return true
				}
			}
		}
	case *parse.FieldNode:
		for _, ident := range n.Ident {
			if strings.EqualFold(ident, name) {
				return true
			}
		}
	case *parse.VariableNode:
		for _, ident := range n.Ident {
			if strings.EqualFold(ident, name) {
				return true
			}
		}
	}
	return false
}

// Whether .Response itself is among the arguments.
func printsResponse(pipe *parse.PipeNode) bool {
	for _, command := range pipe.Cmds {
		for _, argument := range command.Args {
			switch n := argument.(type) {
			case *parse.FieldNode:
				if slices.Contains(n.Ident, "Response") {
					return true
				}
			case *parse.PipeNode:
				if printsResponse(n) {
					return true
				}
			}
		}
	}
	return false
}

// Removes what follows the first action with .Response; true if there is one.
func cut(list *parse.ListNode) bool {
	for i, node := range list.Nodes {
		var branch *parse.BranchNode
		switch n := node.(type) {
		case *parse.ActionNode:
			if printsResponse(n.Pipe) {
				list.Nodes = list.Nodes[:i+1]
				return true
			}
		case *parse.IfNode:
			branch = &n.BranchNode
		case *parse.WithNode:
			branch = &n.BranchNode
		case *parse.RangeNode:
			branch = &n.BranchNode
		}
		if branch == nil {
			continue
		}
		if cut(branch.List) {
			branch.ElseList = nil
			list.Nodes = list.Nodes[:i+1]
			return true
		}
		if branch.ElseList != nil && cut(branch.ElseList) {
			list.Nodes = list.Nodes[:i+1]
			return true
		}
	}
	return false
}

func render(c testCase) (string, error) {
	funcs := template.FuncMap{"json": jsonText}
	parsed := func() (*template.Template, error) {
		return template.New("").Option("missingkey=zero").Funcs(funcs).Parse(c.Template)
	}
	whole, err := parsed()
	if err != nil {
		return "", err
	}
	uses := func(name string) bool {
		for _, t := range whole.Templates() {
			if has(t.Root, name) {
				return true
			}
		}
		return false
	}
	think := c.Think == nil || *c.Think
	system, messages := joined(c.Messages)
	var out bytes.Buffer
	if uses("Messages") {
		err := whole.Execute(&out, map[string]any{
			"System": system, "Messages": messages, "Tools": c.Tools, "Response": "",
			"Think": think, "ThinkLevel": c.Effort, "IsThinkSet": true,
		})
		return out.String(), err
	}
	if !uses("Response") {
		c.Template += "{{ .Response }}"
		if whole, err = parsed(); err != nil {
			return "", err
		}
	}
	system = ""
	prompt, response := "", ""
	execute := func(t *template.Template) error {
		values := map[string]any{
			"System": system, "Prompt": prompt, "Response": response,
			"Think": think, "ThinkLevel": c.Effort, "IsThinkSet": true,
		}
		system, prompt, response = "", "", ""
		return t.Execute(&out, values)
	}
	for _, m := range messages {
		isOver := m.Role == "system" && prompt+response != "" || m.Role == "user" && response != ""
		if isOver {
			if err := execute(whole); err != nil {
				return "", err
			}
		}
		switch m.Role {
		case "system":
			system = m.Content
		case "user":
			prompt = m.Content
		case "assistant":
			response = m.Content
		}
	}
	last, err := parsed()
	if err != nil {
		return "", err
	}
	cut(last.Root)
	err = execute(last)
	return out.String(), err
}

func main() {
	path := os.Args[1]
	text, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	var cases []testCase
	if err := json.Unmarshal(text, &cases); err != nil {
		panic(err)
	}
	for i, c := range cases {
		if cases[i].Expected, err = render(c); err != nil {
			panic(fmt.Sprintf("%s: %s", c.Name, err))
		}
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(cases); err != nil {
		panic(err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		panic(err)
	}
}
