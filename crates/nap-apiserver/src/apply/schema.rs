//! How the parts of an object are merged: from the table of the built-in kinds, or from the schema
//! of a definition. What is not described merges field by field, and its lists as a whole.

use crate::builtin::types::{self, Kind, Merge, Shape};
use crate::crd::{CustomSchema, Schema};
use crate::resources::Resource;

/// The type of one value inside an object.
#[derive(Clone, Copy)]
pub(super) enum Node<'a> {
    /// A field of a built-in kind.
    Field(&'static types::Field),
    /// A message of a built-in kind: the object itself, or an item of one of its lists.
    Message(&'static str),
    Custom(&'a Schema),
    /// The metadata of a custom resource, and what no schema describes.
    Open,
}

/// How a list merges.
pub(super) enum ListRule<'a> {
    Atomic,
    Set,
    Keys(Vec<&'a str>),
}

impl<'a> Node<'a> {
    /// The type of the objects of a resource.
    pub(super) fn root(resource: &'a Resource) -> Self {
        if let Some(schema) = resource.schema.as_deref() {
            return Node::Custom(CustomSchema::structure(schema));
        }
        let name = types::message_name(&resource.api_version(), &resource.kind);
        // The table lives as long as the program, the name does not.
        types::name_of(&name).map_or(Node::Open, Node::Message)
    }

    /// The type of a field of an object, or of a value of a map.
    pub(super) fn child(self, name: &str) -> Node<'a> {
        match self {
            Node::Message(message) => field_of(message, name).map_or(Node::Open, Node::Field),
            Node::Field(field) => match (field.shape, field.kind) {
                (Shape::One | Shape::Inline, Kind::Message(message)) => {
                    Node::Message(message).child(name)
                }
                (Shape::Map, Kind::Message(message)) => Node::Message(message),
                _ => Node::Open,
            },
            Node::Custom(_) if name == "metadata" => Node::Message("meta.v1.ObjectMeta"),
            Node::Custom(schema) => schema.property(name).map_or(Node::Open, Node::Custom),
            Node::Open => Node::Open,
        }
    }

    /// The type of the items of a list.
    pub(super) fn item(self) -> Node<'a> {
        match self {
            Node::Field(field) => match field.kind {
                Kind::Message(message) => Node::Message(message),
                _ => Node::Open,
            },
            Node::Custom(schema) => schema.items.as_deref().map_or(Node::Open, Node::Custom),
            Node::Message(_) | Node::Open => Node::Open,
        }
    }

    pub(super) fn list_rule(self) -> ListRule<'a> {
        match self {
            Node::Field(field) => match &field.merge {
                Merge::Set => ListRule::Set,
                Merge::Keys(keys) => ListRule::Keys(keys.clone()),
                Merge::Plain | Merge::Atomic => ListRule::Atomic,
            },
            Node::Custom(schema) => match schema.list_type.as_str() {
                "set" => ListRule::Set,
                "map" => ListRule::Keys(schema.list_keys.iter().map(String::as_str).collect()),
                _ => ListRule::Atomic,
            },
            Node::Message(_) | Node::Open => ListRule::Atomic,
        }
    }

    /// Whether an object or map is owned and merged as a whole.
    pub(super) fn is_atomic(self) -> bool {
        matches!(self, Node::Field(field) if field.merge == Merge::Atomic)
    }
}

fn field_of(message: &str, name: &str) -> Option<&'static types::Field> {
    let fields = types::fields(message)?;
    let own = fields.iter().find(|field| field.name == name);
    own.or_else(|| {
        let inline = fields.iter().filter(|field| field.shape == Shape::Inline);
        inline.into_iter().find_map(|field| match field.kind {
            Kind::Message(message) => field_of(message, name),
            _ => None,
        })
    })
}
