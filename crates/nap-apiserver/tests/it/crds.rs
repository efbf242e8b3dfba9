//! Custom resources: what a definition makes the server do.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::support::{client, define_widgets, refusal, typed, widget, widget_definition, widgets};

fn created() -> PostParams {
    PostParams::default()
}

#[tokio::test(start_paused = true)]
async fn definitions_are_established_and_objects_defaulted_and_pruned() {
    let client = client();
    assert_eq!(refusal(widgets(&client, "v1").get("a").await).0, 404);
    let api = define_widgets(&client).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definition = definitions.get("widgets.example.com").await.unwrap();
    let status = definition.status.unwrap();
    assert!(
        status.conditions.unwrap().iter().any(|c| c.type_ == "Established" && c.status == "True")
    );
    assert_eq!(status.stored_versions, Some(vec!["v1".to_owned()]));

    let mut wanted = widget("a", &json!({ "size": 2, "colour": "red" }));
    wanted.data["status"] = json!({ "phase": "Done" });
    let made = api.create(&created(), &wanted).await.unwrap();
    assert_eq!(
        made.data["spec"],
        json!({ "size": 2, "limit": 10, "class": "small", "policy": { "mode": "Gentle" } })
    );
    assert!(made.data.get("status").is_none());
    assert_eq!(made.metadata.generation, Some(1));
}

#[tokio::test(start_paused = true)]
async fn status_and_spec_are_written_apart() {
    let client = client();
    let api = define_widgets(&client).await;
    api.create(&created(), &widget("a", &json!({ "size": 2 }))).await.unwrap();
    let both = json!({ "spec": { "size": 3 }, "status": { "phase": "Busy" } });
    let params = PatchParams::default();
    let after = api.patch_status("a", &params, &Patch::Merge(&both)).await.unwrap();
    assert_eq!(
        (&after.data["spec"]["size"], &after.data["status"]["phase"]),
        (&json!(2), &json!("Busy"))
    );
    assert_eq!(after.metadata.generation, Some(1));
    let both = json!({ "spec": { "size": 3 }, "status": { "phase": "Other" } });
    let after = api.patch("a", &params, &Patch::Merge(&both)).await.unwrap();
    assert_eq!(
        (&after.data["spec"]["size"], &after.data["status"]["phase"]),
        (&json!(3), &json!("Busy"))
    );
    assert_eq!(after.metadata.generation, Some(2));
    let unversioned: DynamicObject = widget("a", &json!({ "size": 4 }));
    assert_eq!(refusal(api.replace("a", &created(), &unversioned).await).0, 422);
}

#[tokio::test(start_paused = true)]
async fn schemas_and_rules_refuse_with_causes() {
    let client = client();
    let api = define_widgets(&client).await;
    let error = api
        .create(&created(), &widget("a", &json!({ "size": 0, "class": "huge" })))
        .await
        .unwrap_err();
    let kube::Error::Api(status) = error else { panic!("{error:?}") };
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    assert!(
        status.message.starts_with("Widget.example.com \"a\" is invalid: ["),
        "{}",
        status.message
    );
    let causes: Vec<(String, String)> = status
        .details
        .as_ref()
        .unwrap()
        .causes
        .iter()
        .map(|c| (c.field.clone(), c.reason.clone()))
        .collect();
    assert!(causes.contains(&("spec.class".into(), "FieldValueNotSupported".into())), "{causes:?}");
    assert!(causes.contains(&("spec.size".into(), "FieldValueInvalid".into())), "{causes:?}");

    let (code, _, message) =
        refusal(api.create(&created(), &widget("a", &json!({ "size": 11 }))).await);
    assert_eq!(code, 422);
    assert_eq!(
        message,
        "Widget.example.com \"a\" is invalid: spec: Invalid value: size must not exceed limit"
    );
    api.create(&created(), &widget("a", &json!({ "size": 1 }))).await.unwrap();
    let change = Patch::Merge(json!({ "spec": { "class": "large" } }));
    let (code, _, message) = refusal(api.patch("a", &PatchParams::default(), &change).await);
    assert_eq!(code, 422);
    assert!(
        message.ends_with("spec.class: Invalid value: \"large\": class is immutable"),
        "{message}"
    );
    let strategic = Patch::Strategic(json!({ "spec": { "size": 2 } }));
    assert_eq!(refusal(api.patch("a", &PatchParams::default(), &strategic).await).0, 415);
    let wrong = widget("b", &json!({ "size": "big" }));
    let (_, _, message) = refusal(api.create(&created(), &wrong).await);
    assert!(message.contains("spec.size in body must be of type integer: \"string\""), "{message}");
}

#[tokio::test(start_paused = true)]
async fn versions_show_one_storage_and_old_ones_warn() {
    let client = client();
    let api = define_widgets(&client).await;
    api.create(&created(), &widget("a", &json!({ "size": 1 }))).await.unwrap();
    let beta = widgets(&client, "v1beta1").get("a").await.unwrap();
    assert_eq!(beta.types.unwrap().api_version, "example.com/v1beta1");
    let request = http::Request::get("/apis/example.com/v1beta1/widgets/a")
        .body(kube::client::Body::empty())
        .unwrap();
    let response = client.send(request).await.unwrap();
    assert_eq!(response.headers()["warning"], "299 - \"example.com/v1beta1 Widget is deprecated\"");
    let scale = api.get_scale("a").await.unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(0));
    let scale = api
        .patch_scale(
            "a",
            &PatchParams::default(),
            &Patch::Merge(json!({ "spec": { "replicas": 7 } })),
        )
        .await
        .unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(7));
    assert_eq!(api.get("a").await.unwrap().data["spec"]["replicas"], 7);
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_can_be_refused() {
    let client = client();
    define_widgets(&client).await;
    let body = serde_json::to_vec(&widget("a", &json!({ "size": 1, "colour": "red" }))).unwrap();
    let post = |query: &str| {
        http::Request::post(format!("/apis/example.com/v1/widgets{query}"))
            .body(body.clone())
            .unwrap()
    };
    let (code, _, message) =
        refusal(client.request::<Value>(post("?fieldValidation=Strict")).await);
    assert_eq!(code, 400);
    assert!(message.contains("strict decoding error: unknown field \"spec.colour\""), "{message}");
    let request = post("").map(kube::client::Body::from);
    let response = client.send(request).await.unwrap();
    assert_eq!(response.headers()["warning"], "299 - \"unknown field \\\"spec.colour\\\"\"");
}

#[tokio::test(start_paused = true)]
async fn a_definition_takes_its_objects_along() {
    let client = client();
    let api = define_widgets(&client).await;
    let mut held = widget("held", &json!({ "size": 1 }));
    held.metadata.finalizers = Some(vec!["example.com/hold".into()]);
    api.create(&created(), &held).await.unwrap();
    api.create(&created(), &widget("free", &json!({ "size": 1 }))).await.unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.delete("widgets.example.com", &DeleteParams::default()).await.unwrap();
    assert!(api.get_opt("free").await.unwrap().is_none());
    assert!(
        definitions.get("widgets.example.com").await.unwrap().metadata.deletion_timestamp.is_some()
    );
    api.patch(
        "held",
        &PatchParams::default(),
        &Patch::Merge(json!({ "metadata": { "finalizers": null } })),
    )
    .await
    .unwrap();
    assert!(definitions.get_opt("widgets.example.com").await.unwrap().is_none());
    // Without its only definition, the group is not served.
    let (code, reason, message) = refusal(api.get("held").await);
    assert_eq!(code, 404);
    assert!(format!("{reason}{message}").contains("404 page not found"), "{reason}: {message}");
    define_widgets(&client).await;
}

#[tokio::test(start_paused = true)]
async fn broken_definitions_are_refused() {
    let client = client();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let refuse = async |change: fn(&mut Value)| {
        let mut definition = widget_definition();
        change(&mut definition);
        refusal(definitions.create(&created(), &typed(definition)).await)
    };
    let (code, _, message) = refuse(|d| d["metadata"]["name"] = json!("widget.example.com")).await;
    assert_eq!(code, 422);
    assert!(message.contains("must be spec.names.plural"), "{message}");
    let rule = |d: &mut Value| {
        d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] =
            json!([{ "rule": "self.size >=" }]);
    };
    assert!(refuse(rule).await.2.contains("compilation failed"));
    assert_eq!(refuse(|d| d["spec"]["versions"][1]["storage"] = json!(true)).await.0, 422);
    let kind = GroupVersionKind::gvk("example.com", "v1", "Widget");
    let none: Api<DynamicObject> =
        Api::all_with(client, &ApiResource::from_gvk_with_plural(&kind, "widgets"));
    assert_eq!(refusal(none.get("a").await).0, 404);
}
