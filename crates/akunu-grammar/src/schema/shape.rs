//! What schemas become: unions of shapes, each of values of one JSON type. Parts refer to other schemas by number,
//! which become shapes when they are needed.

use std::collections::BTreeSet;
use std::rc::Rc;

use serde_json::Number;

use super::places::PlaceId;

/// A conjunction of schemas, by number.
pub(super) type Node = u32;

/// Every value. It is the default of a node.
pub(super) const ANY: Node = 0;
/// No value.
pub(super) const NEVER: Node = 1;

/// A part of a conjunction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Atom {
    Never,
    /// What the schema there allows.
    Is(PlaceId),
    /// What the schema there does not allow.
    Not(PlaceId),
    /// The value that is there.
    Equal(PlaceId),
    /// Other values than the one there.
    Differ(PlaceId),
    /// A value that has no place: an index into the converter's scalars.
    Scalar(u32),
}

/// A union of shapes.
#[derive(Clone, Debug)]
pub(super) struct Shapes {
    pub list: Vec<Shape>,
    /// Whether these are all values, but for strings of formats ([`super::formats::wide`]), so that an empty
    /// intersection proves that two schemas exclude each other.
    pub is_exact: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    Null,
    Boolean(Option<bool>),
    Number(Num),
    String(Text),
    Array(Rc<Array>),
    Object(Rc<Object>),
}

/// A bound and whether it is excluded.
pub(super) type Bound = Option<(f64, bool)>;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Num {
    /// If set, only these, and the other fields are already applied.
    pub values: Option<Rc<Vec<Number>>>,
    pub is_integer: bool,
    pub min: Bound,
    pub max: Bound,
    /// A coefficient and the count of its decimals.
    pub multiple: Option<(u32, u32)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Text {
    /// If set, only these, and the other fields are already applied.
    pub values: Option<Rc<Vec<Rc<str>>>>,
    /// Expressions of whole strings, in the syntax of the crate `regex`.
    pub patterns: Vec<Rc<str>>,
    /// Expressions that it must not match, and the place of the keyword.
    pub not: Vec<(Rc<str>, PlaceId)>,
    /// Strings that it must not be.
    pub except: Rc<BTreeSet<Rc<str>>>,
    pub min: u64,
    pub max: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Array {
    pub prefix: Vec<Node>,
    pub items: Node,
    pub min: u64,
    pub max: Option<u64>,
    pub contains: Vec<Contains>,
    /// The place of `uniqueItems`.
    pub unique: Option<PlaceId>,
}

/// At least `count` elements satisfy `node`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Contains {
    pub node: Node,
    pub count: u64,
    pub place: PlaceId,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Object {
    /// In the order in which they are written.
    pub properties: Vec<(Rc<str>, Node)>,
    pub patterns: Vec<(Rc<str>, Node)>,
    /// Of properties that have none of the names and match none of the patterns.
    pub additional: Node,
    pub required: Vec<Rc<str>>,
    pub min: u64,
    pub max: Option<u64>,
    /// What names have to satisfy.
    pub names: Vec<Node>,
    pub extra: Vec<Rc<Extra>>,
    /// A schema that counts properties, for messages.
    pub counted: PlaceId,
}

/// There is a property that satisfies `node`, has none of the names and matches none of the patterns.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Extra {
    pub names: Vec<Rc<str>>,
    pub patterns: Vec<Rc<str>>,
    pub node: Node,
}

impl Shapes {
    pub fn any() -> Shapes {
        Shapes { list: Shape::all().to_vec(), is_exact: true }
    }

    pub fn none() -> Shapes {
        Shapes { list: Vec::new(), is_exact: true }
    }

    pub fn one(shape: Shape) -> Shapes {
        Shapes { list: vec![shape], is_exact: true }
    }

    /// All values but those of one type.
    pub fn other_than(shape: &Shape) -> Shapes {
        let list = Shape::all().into_iter().filter(|other| !other.is_type_of(shape)).collect();
        Shapes { list, is_exact: true }
    }

    /// A subset of what is meant, of which nothing is known.
    pub fn unknown() -> Shapes {
        Shapes { list: Vec::new(), is_exact: false }
    }

    /// Adds alternatives. Beside all values of a type, others of that type are left out.
    pub fn join(&mut self, other: Shapes) {
        self.is_exact &= other.is_exact;
        // Of each type that is added: whether all its values are there already. They are one shape then.
        let mut whole = [None; 6];
        for shape in other.list {
            let index = shape.type_index();
            let first = || self.list.iter().find(|known| known.type_index() == index);
            if *whole[index].get_or_insert_with(|| first().is_some_and(Shape::is_whole)) {
                continue;
            }
            if shape.is_whole() {
                whole[index] = Some(true);
                self.list.retain(|other| other.type_index() != index);
            }
            self.list.push(shape);
        }
    }

    pub fn is_any(&self) -> bool {
        self.list.len() == 6 && self.list.iter().all(Shape::is_whole)
    }
}

impl Shape {
    pub fn all() -> [Shape; 6] {
        [
            Shape::Null,
            Shape::Boolean(None),
            Shape::Number(Num::default()),
            Shape::String(Text::default()),
            Shape::Array(Rc::default()),
            Shape::Object(Rc::default()),
        ]
    }

    fn type_index(&self) -> usize {
        match self {
            Shape::Null => 0,
            Shape::Boolean(_) => 1,
            Shape::Number(_) => 2,
            Shape::String(_) => 3,
            Shape::Array(_) => 4,
            Shape::Object(_) => 5,
        }
    }

    /// Whether these are all values of the type.
    pub fn is_whole(&self) -> bool {
        match self {
            Shape::Null | Shape::Boolean(None) => true,
            Shape::Boolean(Some(_)) => false,
            Shape::Number(num) => *num == Num::default(),
            Shape::String(text) => text.is_whole(),
            Shape::Array(array) => **array == Array::default(),
            Shape::Object(object) => {
                object.properties.is_empty()
                    && **object == Object { counted: object.counted, ..Object::default() }
            }
        }
    }

    pub fn is_type_of(&self, other: &Shape) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl Text {
    /// Whether these are all strings. It allocates nothing, because it is asked often.
    pub fn is_whole(&self) -> bool {
        let Text { values, patterns, not, except, min, max } = self;
        values.is_none()
            && patterns.is_empty()
            && not.is_empty()
            && except.is_empty()
            && *min == 0
            && max.is_none()
    }
}

impl Object {
    pub fn property(&self, name: &str) -> Option<Node> {
        self.properties.iter().find(|(other, _)| &**other == name).map(|(_, node)| *node)
    }
}
