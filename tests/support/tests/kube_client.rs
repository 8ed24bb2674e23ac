//! The library that our controller speaks through finds what it needs in the in-memory API server.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
    CertificateSigningRequestStatus,
};
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::api::{
    DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::discovery::{self, Scope};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client, Config, Resource};
use kubelet_authenticator_test_support::api_server::{ApiServer, Definition};
use kubelet_authenticator_test_support::pki::{Subject, certificate_request};
use serde_json::json;

/// Longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(10);

const SIGNER: &str = "cluster.x-k8s.io/kube-apiserver-client-kubelet-null";

async fn client(server: &ApiServer) -> Client {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = Kubeconfig::read_from(server.write_admin_kubeconfig(dir.path())).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap();
    Client::try_from(config).unwrap()
}

fn request(name: &str) -> CertificateSigningRequest {
    let (pem, _) = certificate_request(&Subject::node("node-1"), None);
    let mut request = CertificateSigningRequest {
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: SIGNER.into(),
            usages: Some(vec!["digital signature".into(), "client auth".into()]),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    request.metadata.name = Some(name.into());
    request
}

fn approved() -> CertificateSigningRequestStatus {
    let condition = CertificateSigningRequestCondition {
        type_: "Approved".into(),
        status: "True".into(),
        reason: Some("Attested".into()),
        ..CertificateSigningRequestCondition::default()
    };
    CertificateSigningRequestStatus {
        conditions: Some(vec![condition]),
        certificate: None,
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { tokio::time::timeout(DEADLINE, work).await.unwrap() })
}

#[test]
fn a_watcher_sees_a_request_come_and_change() {
    let server = ApiServer::start();
    block_on(async {
        let requests: Api<CertificateSigningRequest> = Api::all(client(&server).await);
        requests
            .create(&PostParams::default(), &request("a"))
            .await
            .unwrap();
        let config = watcher::Config::default().fields(&format!("spec.signerName={SIGNER}"));
        let stream = watcher(requests.clone(), config).applied_objects();
        let mut stream = std::pin::pin!(stream);

        let first = stream.try_next().await.unwrap().unwrap();
        assert_eq!(first.metadata.name.as_deref(), Some("a"));
        let mut object = requests.get("a").await.unwrap();
        object.status = Some(approved());
        requests
            .replace_subresource("approval", "a", &PostParams::default(), &object)
            .await
            .unwrap();

        let second = stream.try_next().await.unwrap().unwrap();
        assert_eq!(
            second.status.unwrap().conditions.unwrap()[0].type_,
            "Approved"
        );
        server.compact();
        server.drop_connections();
        // Errors in between are the watcher's to overcome.
        let third = loop {
            if let Ok(object) = stream.next().await.unwrap() {
                break object;
            }
        };
        assert_eq!(third.metadata.name.as_deref(), Some("a"));
    });
}

#[test]
fn subresources_are_replaced_and_patched_with_preconditions() {
    let server = ApiServer::start();
    block_on(async {
        let requests: Api<CertificateSigningRequest> = Api::all(client(&server).await);
        let created = requests
            .create(&PostParams::default(), &request("a"))
            .await
            .unwrap();
        let mut stale = created.clone();
        stale.status = Some(approved());
        requests
            .replace_subresource("approval", "a", &PostParams::default(), &stale)
            .await
            .unwrap();

        let error = requests
            .replace_subresource("approval", "a", &PostParams::default(), &stale)
            .await;
        let Err(kube::Error::Api(status)) = error else {
            panic!("{error:?}")
        };
        assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
        let failed = json!({"status": {"conditions": [{"type": "Failed", "status": "True"}]}});
        let result = requests
            .patch_status("a", &PatchParams::default(), &Patch::Merge(failed))
            .await;
        let Err(kube::Error::Api(status)) = result else {
            panic!("{result:?}")
        };
        assert!(
            status.message.contains("updates may not remove"),
            "{status:?}"
        );
        let pem = server.ca_pem().as_bytes().to_vec();
        let certificate = json!({"status": {"certificate": ByteString(pem)}});
        let patch = Patch::Merge(certificate);
        let issued = requests
            .patch_status("a", &PatchParams::default(), &patch)
            .await
            .unwrap();
        assert!(issued.status.unwrap().certificate.is_some());
    });
}

#[test]
fn lists_errors_and_events_are_understood() {
    let server = ApiServer::start();
    block_on(async {
        let client = client(&server).await;
        let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
        let created = requests
            .create(&PostParams::default(), &request("a"))
            .await
            .unwrap();

        let nodes: Api<Node> = Api::all(client.clone());
        assert!(
            nodes
                .list(&ListParams::default())
                .await
                .unwrap()
                .items
                .is_empty()
        );
        assert!(nodes.get_opt("node-1").await.unwrap().is_none());
        let reference: ObjectReference = created.object_ref(&());
        let recorder = Recorder::new(client, Reporter::from("node-attestation-controller"));
        let event = Event {
            type_: EventType::Warning,
            reason: "Denied".into(),
            note: Some("another machine".into()),
            action: "Decide".into(),
            secondary: None,
        };
        recorder.publish(&event, &reference).await.unwrap();
        recorder.publish(&event, &reference).await.unwrap();

        let events = server.events();
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(events[0]["reason"], "Denied");
    });
}

#[test]
fn a_reflector_and_a_dynamic_api_work_on_a_kind_that_a_test_defines() {
    let server = ApiServer::start();
    let machines = Definition::new("cluster.x-k8s.io", "v1beta2", "Machine", "machines");
    server.define(machines.with_status());
    block_on(async {
        let client = client(&server).await;
        let kind = GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Machine");
        let (resource, capabilities) = discovery::pinned_kind(&client, &kind).await.unwrap();
        assert_eq!(capabilities.scope, Scope::Namespaced);
        let machines: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), "default", &resource);
        let writer = reflector::store::Writer::new(resource.clone());
        let reader = writer.as_reader();
        let everywhere = Api::<DynamicObject>::all_with(client, &resource);
        let stream = watcher(everywhere, watcher::Config::default().streaming_lists());
        let mut stream = std::pin::pin!(stream.reflect(writer).applied_objects());

        let object = DynamicObject::new("m1", &resource).data(json!({"spec": {"a": 1}}));
        machines
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        stream.try_next().await.unwrap().unwrap();
        let patch = Patch::Merge(json!({"status": {"phase": "Running"}}));
        let params = PatchParams::default();
        machines.patch_status("m1", &params, &patch).await.unwrap();
        stream.try_next().await.unwrap().unwrap();

        let [cached] = <[_; 1]>::try_from(reader.state()).unwrap();
        assert_eq!(cached.data["status"]["phase"], "Running");
        let uid = Preconditions {
            uid: Some("another".into()),
            resource_version: None,
        };
        let params = DeleteParams::default().preconditions(uid);
        let refused = machines.delete("m1", &params).await.unwrap_err();
        assert!(matches!(refused, kube::Error::Api(status) if status.code == 409));
    });
}
