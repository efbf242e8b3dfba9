//! Tables: the columns `kubectl get` prints.

use serde_json::{Value, json};

use crate::meta;
use crate::render;
use crate::resources::Resource;

/// A `meta.k8s.io/v1` Table of the objects; without `columns` only the rows.
pub(crate) fn render(
    _resource: &Resource,
    objects: &[&Value],
    metadata: Value,
    _now: jiff::Timestamp,
    columns: bool,
) -> Value {
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| json!({ "cells": [meta::name(object), object["metadata"]["creationTimestamp"]], "object": render::partial(object) }))
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": if columns { json!([]) } else { Value::Null },
        "rows": rows,
    })
}
