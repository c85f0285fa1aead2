//! From a schema's source to unions of shapes: references, `allOf`, `anyOf`, `oneOf`, `not`, `if` and dependencies.

use std::collections::HashMap;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::SchemaError;
use super::budget::{self, Budget, DEPTH};
use super::places::{PlaceId, Places};
use super::regexes::Regexes;
use super::shape::{ANY, Atom, NEVER, Node, Num, Object, Shape, Shapes, Text};

pub(super) type Result<T> = std::result::Result<T, SchemaError>;

pub(super) struct Converter<'a> {
    pub places: Places<'a>,
    pub budget: Budget,
    pub regexes: Regexes,
    /// Values without parts.
    scalars: Vec<Value>,
    nodes: Vec<Rc<[Atom]>>,
    by_atoms: HashMap<Rc<[Atom]>, Node>,
    /// What nodes and atoms are; `None` while they are being found out.
    shapes: HashMap<Node, Option<Rc<Shapes>>>,
    atoms: HashMap<Atom, Option<Rc<Shapes>>>,
    depth: usize,
    /// The first keyword of which no violation could be expressed.
    left_out: Option<PlaceId>,
}

impl<'a> Converter<'a> {
    pub fn new(root: &'a Value) -> Result<Converter<'a>> {
        let mut budget = Budget::default();
        let places = Places::new(root, &mut budget)?;
        let nodes: Vec<Rc<[Atom]>> = vec![Rc::new([]), Rc::new([Atom::Never])];
        let by_atoms = nodes.iter().cloned().zip([ANY, NEVER]).collect();
        Ok(Converter {
            places,
            budget,
            regexes: Regexes::default(),
            scalars: Vec::new(),
            nodes,
            by_atoms,
            shapes: HashMap::new(),
            atoms: HashMap::new(),
            depth: 0,
            left_out: None,
        })
    }

    pub fn root(&mut self) -> Node {
        self.node(Atom::Is(0))
    }

    /// The node of one atom. Schemas of which it is clear without conversion are simplified.
    pub fn node(&mut self, atom: Atom) -> Node {
        let (place, yes, no) = match atom {
            Atom::Is(place) => (place, ANY, NEVER),
            Atom::Not(place) => (place, NEVER, ANY),
            _ => return self.intern(vec![atom]),
        };
        match self.places.value(place) {
            Value::Bool(true) => yes,
            Value::Bool(false) => no,
            Value::Object(map) if map.is_empty() => yes,
            _ => self.intern(vec![atom]),
        }
    }

    /// The node of a value without parts.
    pub fn scalar(&mut self, value: Value) -> Node {
        self.scalars.push(value);
        self.intern(vec![Atom::Scalar(self.scalars.len() as u32 - 1)])
    }

    fn intern(&mut self, atoms: Vec<Atom>) -> Node {
        let atoms: Rc<[Atom]> = atoms.into();
        let next = self.nodes.len() as Node;
        let node = *self.by_atoms.entry(atoms.clone()).or_insert(next);
        if node == next {
            self.nodes.push(atoms);
        }
        node
    }

    /// The conjunction of both.
    pub fn both(&mut self, a: Node, b: Node) -> Result<Node> {
        if a == b || b == ANY || a == NEVER {
            return Ok(a);
        }
        if a == ANY || b == NEVER {
            return Ok(b);
        }
        let (mut atoms, more) = (self.nodes[a as usize].to_vec(), self.nodes[b as usize].clone());
        self.budget.spend(atoms.len() + more.len())?;
        atoms.extend(more.iter());
        // Sorted, so that schemas that refer to each other have finitely many conjunctions; the order of places is
        // that of the source.
        atoms.sort_unstable();
        atoms.dedup();
        Ok(self.intern(atoms))
    }

    /// A place of the node, for messages.
    pub fn pointer(&self, node: Node) -> String {
        self.nodes[node as usize]
            .iter()
            .find_map(|atom| match atom {
                Atom::Never | Atom::Scalar(_) => None,
                Atom::Is(place) | Atom::Not(place) | Atom::Equal(place) | Atom::Differ(place) => {
                    Some(self.places.pointer(*place))
                }
            })
            .unwrap_or_else(|| "#".into())
    }

    pub fn shapes(&mut self, node: Node) -> Result<Rc<Shapes>> {
        if node == ANY {
            return Ok(Rc::new(Shapes::any()));
        }
        match self.shapes.get(&node) {
            Some(Some(shapes)) => return Ok(shapes.clone()),
            Some(None) => return Err(self.circular(node)),
            None => {}
        }
        self.shapes.insert(node, None);
        let mut all: Option<Rc<Shapes>> = None;
        for atom in self.nodes[node as usize].clone().iter() {
            let shapes = self.atom(*atom)?;
            all = Some(match all {
                None => shapes,
                Some(before) => Rc::new(self.meet(&before, &shapes)?),
            });
        }
        let all = all.unwrap_or_else(|| Rc::new(Shapes::any()));
        self.shapes.insert(node, Some(all.clone()));
        Ok(all)
    }

    /// Whether the node is known to have no value. A node that is being converted is not.
    pub fn is_never(&mut self, node: Node) -> Result<bool> {
        if matches!(self.shapes.get(&node), Some(None)) || self.depth + 8 > DEPTH {
            return Ok(false);
        }
        if self.nodes[node as usize].iter().any(|atom| matches!(self.atoms.get(atom), Some(None))) {
            return Ok(false);
        }
        let shapes = self.shapes(node)?;
        Ok(shapes.is_exact && shapes.list.is_empty())
    }

    /// Notes a keyword of which no violation is expressed.
    pub fn leave_out(&mut self, at: PlaceId) {
        self.left_out.get_or_insert(at);
    }

    /// Why nothing can be generated: a keyword that was left out, if there is one.
    pub fn nothing_left(&self, error: SchemaError) -> SchemaError {
        match self.left_out {
            Some(at) if matches!(error, SchemaError::Unsatisfiable { .. }) => {
                self.unsupported_at(at, "that it is violated cannot be expressed, and no other value is left")
            }
            _ => error,
        }
    }

    fn circular(&self, node: Node) -> SchemaError {
        SchemaError::Invalid {
            keyword: "$ref".into(),
            place: self.pointer(node),
            reason: "the schema is defined by itself".into(),
        }
    }

    pub fn atom(&mut self, atom: Atom) -> Result<Rc<Shapes>> {
        match self.atoms.get(&atom) {
            Some(Some(shapes)) => return Ok(shapes.clone()),
            Some(None) => {
                let node = self.intern(vec![atom]);
                return Err(self.circular(node));
            }
            None => {}
        }
        self.budget.spend(1)?;
        self.depth += 1;
        budget::at_most(self.depth, DEPTH, "schemas are nested or refer to each other")?;
        self.atoms.insert(atom, None);
        let shapes = match atom {
            Atom::Never => Shapes::none(),
            Atom::Is(place) => self.positive(place)?,
            Atom::Not(place) => self.negative(place)?,
            Atom::Equal(place) => self.equal(place),
            Atom::Scalar(index) => Shapes::one(scalar_shape(&self.scalars[index as usize])),
            Atom::Differ(place) => self.differ(place),
        };
        self.depth -= 1;
        let shapes = Rc::new(shapes);
        self.atoms.insert(atom, Some(shapes.clone()));
        Ok(shapes)
    }

    /// The object that a schema is; `Err` has what a schema without keywords allows.
    pub fn keywords(&self, place: PlaceId) -> Result<std::result::Result<&'a Map<String, Value>, bool>> {
        match self.places.value(place) {
            Value::Bool(all) => Ok(Err(*all)),
            Value::Object(map) => Ok(Ok(map)),
            _ => Err(self.invalid(place, "a schema", "it is neither an object nor a boolean")),
        }
    }

    fn positive(&mut self, place: PlaceId) -> Result<Shapes> {
        let map = match self.keywords(place)? {
            Ok(map) => map,
            Err(true) => return Ok(Shapes::any()),
            Err(false) => return Ok(Shapes::none()),
        };
        if let Some(value) = map.get("$ref").filter(|_| self.places.is_old()) {
            let target = self.target(place, "$ref", value)?;
            return Ok(self.atom(Atom::Is(target))?.as_ref().clone());
        }
        if map.contains_key("extends") && self.places.is_later("allOf") {
            return Err(self.unsupported(place, "extends", "use allOf of a later draft"));
        }
        let mut all = None;
        // Properties are written in the order in which they are first named.
        let base_at = ["properties", "required", "type"].into_iter().find(|key| map.contains_key(*key));
        if base_at.is_none() {
            all = self.typed(place, map)?;
        }
        // Conditions on properties come after what names them.
        let is_condition = |key: &&String| {
            let conditions =
                ["anyOf", "oneOf", "not", "if", "dependencies", "dependentRequired", "dependentSchemas"];
            conditions.contains(&key.as_str())
        };
        let keys = map.keys().filter(|key| !is_condition(key)).chain(map.keys().filter(is_condition));
        for key in keys {
            let at = self.places.child(place, key);
            let with = self.with_keyword(place, map, (key, base_at), all);
            let at = if base_at == Some(key) { place } else { at };
            all = with.map_err(|error| error.within(|| self.places.pointer(at)))?;
        }
        let mut all = all.unwrap_or_else(Shapes::any);
        all.is_exact &= !map.keys().any(|key| self.places.is_later(key));
        Ok(all)
    }

    /// The shapes with a keyword's condition added.
    fn with_keyword(
        &mut self,
        place: PlaceId,
        map: &'a Map<String, Value>,
        (key, base_at): (&String, Option<&str>),
        all: Option<Shapes>,
    ) -> Result<Option<Shapes>> {
        let at = self.places.child(place, key);
        let part = match key.as_str() {
            key if Some(key) == base_at => self.typed(place, map)?,
            "$ref" | "$dynamicRef" | "$recursiveRef" => {
                let target = self.target(place, key, &map[key])?;
                Some(self.atom(Atom::Is(target))?.as_ref().clone())
            }
            "enum" => Some(self.any_value(at)?),
            "const" => Some(self.equal(at)),
            "allOf" => Some(self.all_of(at, Atom::Is)?),
            "anyOf" => Some(self.any_of(at, Atom::Is)?),
            "oneOf" => Some(self.one_of(at)?),
            "not" => Some(self.atom(Atom::Not(at))?.as_ref().clone()),
            "if" => self.conditional(place, map)?,
            "dependencies" | "dependentRequired" | "dependentSchemas" => Some(self.dependencies(at)?),
            _ => None,
        };
        Ok(match (all, part) {
            (None, part) => part,
            (all, None) => all,
            (Some(before), Some(part)) => Some(self.meet(&before, &part)?),
        })
    }

    /// The elements of a keyword that is a list of schemas.
    pub fn list(&mut self, at: PlaceId) -> Result<Vec<PlaceId>> {
        match self.places.value(at) {
            Value::Array(list) if !list.is_empty() => {
                self.budget.spend(list.len())?;
                Ok((0..list.len()).map(|index| self.places.child(at, &index.to_string())).collect())
            }
            _ => Err(self.invalid_at(at, "it is not a list with elements")),
        }
    }

    /// The members of a keyword that is an object.
    pub fn members(&mut self, at: PlaceId) -> Result<Vec<(Rc<str>, PlaceId)>> {
        let Value::Object(map) = self.places.value(at) else {
            return Err(self.invalid_at(at, "it is not an object"));
        };
        self.budget.spend(map.len())?;
        Ok(map.keys().map(|key| (key.as_str().into(), self.places.child(at, key))).collect())
    }

    pub fn all_of(&mut self, at: PlaceId, part: fn(PlaceId) -> Atom) -> Result<Shapes> {
        let mut all = Shapes::any();
        for place in self.list(at)? {
            let shapes = self.atom(part(place))?;
            all = self.meet(&all, &shapes)?;
        }
        Ok(all)
    }

    pub fn any_of(&mut self, at: PlaceId, part: fn(PlaceId) -> Atom) -> Result<Shapes> {
        let mut all = Shapes::none();
        for place in self.list(at)? {
            let shapes = self.atom(part(place))?;
            if part(place) == Atom::Is(place) && shapes.is_any() {
                return Ok(Shapes::any());
            }
            self.budget.spend(shapes.list.len())?;
            all.join(shapes.as_ref().clone());
            budget::at_most(all.list.len(), 8 * budget::ALTERNATIVES, "alternatives")?;
        }
        Ok(all)
    }

    /// Each branch without what the others allow; branches that exclude each other are left as they are.
    fn one_of(&mut self, at: PlaceId) -> Result<Shapes> {
        let places = self.list(at)?;
        let branches = places.iter().map(|place| self.atom(Atom::Is(*place))).collect::<Result<Vec<_>>>()?;
        let mut overlaps = vec![Vec::new(); places.len()];
        for i in 0..places.len() {
            for j in i + 1..places.len() {
                if !self.are_disjoint(&branches[i], &branches[j])? {
                    overlaps[i].push(j);
                    overlaps[j].push(i);
                }
            }
        }
        let mut all = Shapes::none();
        for (i, others) in overlaps.iter().enumerate() {
            let mut shapes = branches[i].as_ref().clone();
            for j in others {
                let other = self.atom(Atom::Not(places[*j]))?;
                shapes = self.meet(&shapes, &other)?;
            }
            self.budget.spend(shapes.list.len())?;
            all.join(shapes);
            budget::at_most(all.list.len(), 8 * budget::ALTERNATIVES, "alternatives")?;
        }
        if all.list.is_empty() && !all.is_exact {
            return Err(
                self.unsupported_at(at, "that its branches exclude each other cannot be shown or made so")
            );
        }
        Ok(all)
    }

    fn are_disjoint(&mut self, a: &Shapes, b: &Shapes) -> Result<bool> {
        self.budget.spend(1)?;
        if !a.is_exact || !b.is_exact {
            return Ok(false);
        }
        for one in &a.list {
            self.budget.spend(1 + b.list.len() / 64)?;
            for other in b.list.iter().filter(|other| other.is_type_of(one)) {
                self.budget.spend(1)?;
                let (both, is_exact) = self.meet_shape(one, other)?;
                let is_empty = match &both {
                    None => true,
                    Some(Shape::Object(object)) => self.has_impossible_property(object)?,
                    Some(Shape::String(text)) => self.is_empty_text(text)?,
                    Some(_) => false,
                };
                if !is_empty || !is_exact {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn has_impossible_property(&mut self, object: &Object) -> Result<bool> {
        for name in &object.required {
            let node = self.property_of(object, name)?;
            if self.is_never(node)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn conditional(&mut self, place: PlaceId, map: &Map<String, Value>) -> Result<Option<Shapes>> {
        if !map.contains_key("then") && !map.contains_key("else") {
            return Ok(None);
        }
        let condition = self.places.child(place, "if");
        let mut all = Shapes::none();
        for (atom, branch) in [(Atom::Is(condition), "then"), (Atom::Not(condition), "else")] {
            let mut shapes = self.atom(atom)?.as_ref().clone();
            if map.contains_key(branch) {
                let branch = self.places.child(place, branch);
                let consequence = self.atom(Atom::Is(branch))?;
                shapes = self.meet(&shapes, &consequence)?;
            }
            all.join(shapes);
        }
        Ok(Some(all))
    }

    fn dependencies(&mut self, at: PlaceId) -> Result<Shapes> {
        let mut all = Shapes::any();
        for (name, place) in self.members(at)? {
            let mut either = Shapes::any();
            either.list.pop();
            either.list.push(absent(&name));
            let consequence = self.dependency(&name, place)?;
            let present = Shapes::one(present(&name));
            either.join(self.meet(&present, &consequence)?);
            all = self.meet(&all, &either)?;
        }
        Ok(all)
    }

    /// What holds if the property is there.
    pub fn dependency(&mut self, name: &str, place: PlaceId) -> Result<Shapes> {
        match self.places.value(place) {
            Value::Array(_) => {
                let mut required = self.strings(place)?;
                required.insert(0, name.into());
                required.dedup();
                Ok(Shapes::one(Shape::Object(Rc::new(Object { required, ..Object::default() }))))
            }
            // Draft 3.
            Value::String(other) => Ok(Shapes::one(present(other))),
            _ => Ok(self.atom(Atom::Is(place))?.as_ref().clone()),
        }
    }

    /// A keyword that is a list of strings.
    pub fn strings(&mut self, at: PlaceId) -> Result<Vec<Rc<str>>> {
        let Value::Array(list) = self.places.value(at) else {
            return Err(self.invalid_at(at, "it is not a list"));
        };
        self.budget.spend(list.len())?;
        let mut seen = std::collections::HashSet::new();
        let mut strings: Vec<Rc<str>> = Vec::new();
        for item in list {
            let Some(text) = item.as_str() else {
                return Err(self.invalid_at(at, "not all elements are strings"));
            };
            if seen.insert(text) {
                strings.push(text.into());
            }
        }
        Ok(strings)
    }

    /// What a reference refers to.
    pub fn target(&mut self, place: PlaceId, keyword: &str, value: &Value) -> Result<PlaceId> {
        let Some(reference) = value.as_str() else {
            return Err(self.invalid(place, keyword, "it is not a string"));
        };
        let anchor = super::uri::split(reference).1;
        let is_dynamic = keyword == "$dynamicRef" && self.places.is_ambiguous(anchor);
        if is_dynamic || (keyword == "$recursiveRef" && self.places.resources() > 1) {
            return Err(self.unsupported(place, keyword, "what it refers to depends on the path to it"));
        }
        let target = self.places.target(place, reference);
        target.ok_or_else(|| {
            self.unsupported(place, keyword, &format!("{reference:.200} is not in this schema"))
        })
    }

    pub fn unsupported(&self, place: PlaceId, keyword: &str, reason: &str) -> SchemaError {
        let place = self.places.pointer(place);
        SchemaError::Unsupported { keyword: keyword.into(), place, reason: reason.into() }
    }

    pub fn invalid(&self, place: PlaceId, keyword: &str, reason: &str) -> SchemaError {
        SchemaError::Invalid {
            keyword: keyword.into(),
            place: self.places.pointer(place),
            reason: reason.into(),
        }
    }

    /// An error about the keyword whose value is at a place.
    pub fn unsupported_at(&self, at: PlaceId, reason: &str) -> SchemaError {
        let (place, keyword) = self.keyword(at);
        SchemaError::Unsupported { keyword, place, reason: reason.into() }
    }

    pub fn invalid_at(&self, at: PlaceId, reason: &str) -> SchemaError {
        let (place, keyword) = self.keyword(at);
        SchemaError::Invalid { keyword, place, reason: reason.into() }
    }

    fn keyword(&self, at: PlaceId) -> (String, String) {
        let pointer = self.places.pointer(at);
        let (place, keyword) = pointer.rsplit_once('/').unwrap_or((&pointer, "a schema"));
        (place.to_string(), keyword.to_string())
    }
}

/// The shape of a value without parts.
pub(super) fn scalar_shape(value: &Value) -> Shape {
    match value {
        Value::Bool(value) => Shape::Boolean(Some(*value)),
        Value::Number(number) => {
            Shape::Number(Num { values: Some(Rc::new(vec![number.clone()])), ..Num::default() })
        }
        Value::String(text) => {
            Shape::String(Text { values: Some(Rc::new(vec![text.as_str().into()])), ..Text::default() })
        }
        Value::Null | Value::Array(_) | Value::Object(_) => Shape::Null,
    }
}

pub(super) fn absent(name: &Rc<str>) -> Shape {
    Shape::Object(Rc::new(Object { properties: vec![(name.clone(), NEVER)], ..Object::default() }))
}

pub(super) fn present(name: &str) -> Shape {
    Shape::Object(Rc::new(Object { required: vec![name.into()], ..Object::default() }))
}
