//! Asynchronous operations of ARM.

use nap_cloud::CloudError;
use serde_json::Value;

use super::{ArmClient, ArmErrorBody, ArmResponse};

/// URL of the operation that a response announces; `None` if it is complete. The status document of
/// `Azure-AsyncOperation` is preferred to `Location`, which tells no cause of a failure.
pub fn operation_url(response: &ArmResponse) -> Option<String> {
    let header = |name: &str| response.headers.get(name)?.to_str().ok().map(str::to_owned);
    let accepted = response.status.as_u16() == 202;
    header("azure-asyncoperation").or_else(|| header("location").filter(|_| accepted))
}

/// The failure of an operation; `None` if it has not failed, or its URL tells no more.
pub async fn operation_failure(
    client: &ArmClient,
    url: &str,
    operation: &str,
) -> Result<Option<CloudError>, CloudError> {
    let status = client.get(operation, url).await?;
    Ok(match status.get("status").and_then(Value::as_str) {
        Some(state @ ("Failed" | "Canceled")) => {
            let body = status.get("error").cloned().unwrap_or_default();
            let error: ArmErrorBody = serde_json::from_value(body).unwrap_or_default();
            Some(error.to_error(None, operation, state))
        }
        // `Succeeded`, `InProgress`, and states that may be added.
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{Request, Response, StatusCode};
    use http_body_util::Full;
    use nap_clock::Clock;
    use nap_cloud::ErrorClass;

    use super::*;

    fn response(status: u16, headers: &[(&'static str, &str)]) -> ArmResponse {
        let headers = headers
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()));
        let status = StatusCode::from_u16(status).unwrap();
        ArmResponse { status, headers: headers.collect(), body: Value::Null }
    }

    #[test]
    fn the_status_document_is_preferred_to_the_location() {
        let both = [("azure-asyncoperation", "a"), ("location", "b")];
        assert_eq!(operation_url(&response(201, &both)).as_deref(), Some("a"));
        assert_eq!(operation_url(&response(202, &both[1..])).as_deref(), Some("b"));
        assert_eq!(operation_url(&response(201, &both[1..])), None, "the location of the resource");
        assert_eq!(operation_url(&response(200, &[])), None);
    }

    #[tokio::test]
    async fn a_failed_operation_tells_its_cause() {
        for (body, code) in [
            (
                r#"{"status":"Failed","error":{"code":"AllocationFailed"}}"#,
                Some("AllocationFailed"),
            ),
            (r#"{"status":"Canceled"}"#, Some("Canceled")),
            (r#"{"status":"InProgress"}"#, None),
            (r#"{"status":"Succeeded"}"#, None),
        ] {
            let service = super::super::http_service(tower::service_fn(
                move |_: Request<Full<Bytes>>| async move {
                    Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(body))))
                },
            ));
            let client = ArmClient::anonymous(service, Clock::wall(), "https://arm.example");
            let failure = operation_failure(&client, "/operation", "create").await.unwrap();
            assert_eq!(failure.as_ref().map(|error| error.code.as_str()), code);
            if code == Some("AllocationFailed") {
                assert_eq!(failure.unwrap().class, ErrorClass::Capacity);
            }
        }
    }
}
