//! Attacks with a bootstrap token, with a worker, with read access to all requests, with write access to the workload
//! cluster, and with a tenant's namespace. The management cluster, the workload cluster and the kubelets are real.

mod disk;
mod policy;
mod tenant;
mod token;
mod worker;

use std::sync::LazyLock;

use kubelet_authenticator_tests::scene::{Scene, Site};
use serde_json::json;

/// Shared: every test has machines of its own.
static SCENE: LazyLock<Scene> = LazyLock::new(|| {
    let settings = json!({"autoApproveBindings": "Remove"});
    Scene::start(&Site::start(), "default", settings)
});
