use std::convert::Infallible;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

fn answer(code: u16, object: &Value) -> Response<Full<Bytes>> {
    let body = Full::new(Bytes::from(object.to_string()));
    Response::builder().status(code).body(body).unwrap()
}

fn status(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no"})
}

/// An API server with a Service `kubernetes` and this list of ranges. A number represents a failure with this status.
fn server(ranges: Result<Value, u16>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let ranges = ranges.clone();
        async move {
            let answered = match (request.uri().path(), ranges) {
                ("/api/v1/namespaces/default/services/kubernetes", _) => {
                    let spec =
                        json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"]});
                    answer(
                        200,
                        &json!({"metadata": {"name": "kubernetes"}, "spec": spec}),
                    )
                }
                ("/apis/networking.k8s.io/v1/servicecidrs", Ok(items)) => answer(
                    200,
                    &json!({
                        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDRList",
                        "metadata": {"resourceVersion": "1"}, "items": items,
                    }),
                ),
                ("/apis/networking.k8s.io/v1/servicecidrs", Err(code)) => {
                    answer(code, &status(code))
                }
                (path, _) => panic!("{path}"),
            };
            Ok::<_, Infallible>(answered)
        }
    });
    Client::new(service, "default")
}

fn object(cidrs: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"}, "spec": {"cidrs": cidrs},
    })
}

async fn found(ranges: Result<Value, u16>) -> (Vec<String>, bool) {
    let found = read(&server(ranges)).await.unwrap();
    let texts = found.ranges.iter().map(ToString::to_string);
    (texts.collect(), found.are_all)
}

const OWN: [&str; 2] = ["10.96.0.1/32", "fd00::1/128"];

#[tokio::test]
async fn the_service_ranges_come_from_all_objects_and_the_kubernetes_service() {
    let all = json!([
        object(&json!(["10.96.0.0/12", "fd00::/108"])),
        object(&json!(["10.80.0.0/16"]))
    ]);

    let (ranges, are_all) = found(Ok(all)).await;

    let expected = [&OWN[..], &["10.96.0.0/12", "fd00::/108", "10.80.0.0/16"]].concat();
    assert_eq!(ranges, expected);
    assert!(are_all);
}

#[tokio::test]
async fn unreadable_service_ranges_are_incomplete() {
    for (ranges, known) in [
        (Err(404), &[][..]),
        (Ok(json!([])), &[]),
        (Ok(json!([object(&json!(["10.96.0.0"]))])), &[]),
        (Ok(json!([object(&json!([]))])), &[]),
        (Ok(json!([object(&json!("10.96.0.0/12"))])), &[]),
        // An object that contains more than one range of the same family.
        (Ok(json!([object(&json!(vec!["10.96.0.0/12"; 3]))])), &[]),
        (
            Ok(json!([
                object(&json!(["10.96.0.0/12"])),
                object(&json!(["x"]))
            ])),
            &["10.96.0.0/12"],
        ),
    ] {
        let expected = [&OWN[..], known].concat();
        assert_eq!(
            found(ranges.clone()).await,
            (texts(&expected), false),
            "{ranges:?}"
        );
    }
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn the_error_names_a_missing_permission_for_service_ranges() {
    let error = read(&server(Err(403))).await.unwrap_err();

    assert_eq!(error.to_string(), "not allowed to list servicecidrs: no");
}

#[tokio::test]
async fn too_many_service_ranges_are_an_error() {
    let many = |count| json!(vec![object(&json!(["10.96.0.0/12"])); count]);
    assert!(read(&server(Ok(many(500)))).await.unwrap().are_all);

    let error = read(&server(Ok(many(501)))).await.unwrap_err();

    assert_eq!(error.to_string(), "there are more than 500 servicecidrs");
}
