//! A tenant whose objects are expensive to read: deeply nested, of the wrong type, with many labels, or long. The
//! tenant rewrites these objects repeatedly. Requests from its cluster cause token lookups, for which the controller
//! reads the `KubeadmConfig`s.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster_api::{BOOTSTRAP, BOOTSTRAP_GROUP, CLUSTER_API, object, reference};
use crate::crowd::Background;
use crate::simulation::{KUBELET_AUTHENTICATION, NODE_IDENTITY, Simulation};

/// The number of levels of nested lists. `serde_json` reads 128 by default.
const LEVELS: usize = 200;

/// The length of the longest text. etcd stores objects of up to 1.5 MiB.
const LENGTH: usize = 1_400_000;

/// The number of labels. Each label is a separate value in memory.
const LABELS: usize = 40_000;

/// The pause between two writes.
const PAUSE: Duration = Duration::from_millis(200);

/// The kinds that the controller watches, except Secrets.
pub const WATCHED: [(&str, &str); 5] = [
    (CLUSTER_API, "Cluster"),
    (CLUSTER_API, "Machine"),
    (CLUSTER_API, "MachinePool"),
    KUBELET_AUTHENTICATION,
    NODE_IDENTITY,
];

/// The kinds that the controller watches for one Cluster, or reads for one Machine.
const OTHERS: [(&str, &str); 2] = [("v1", "Secret"), (BOOTSTRAP, "KubeadmConfig")];

/// The property that makes an object expensive to read.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// A field that the controller does not use has many levels.
    Nested,
    /// A field that the controller uses is a list with many levels.
    Wrong,
    Labels,
    Long,
}

const SHAPES: [(Shape, &str); 4] = [
    (Shape::Nested, "nested"),
    (Shape::Wrong, "wrong"),
    (Shape::Labels, "labels"),
    (Shape::Long, "long"),
];

/// Creates the objects of this tenant, and then updates them until the returned thread is stopped. Its result is the
/// number of writes.
pub fn turn(simulation: &Simulation, cluster: &str) -> Background<usize> {
    let kinds = WATCHED.into_iter().chain(OTHERS);
    let all = kinds.flat_map(|kind| SHAPES.map(|(shape, name)| (kind, shape, name)));
    let all: Vec<_> = all.collect();
    for &(kind, shape, name) in &all {
        let object = shaped(kind, (cluster, name), shape, 0);
        simulation.management.put(object);
    }
    let (management, cluster) = (simulation.management.clone(), cluster.to_owned());
    Background::start(move |is_over| {
        let mut written = 0;
        while !is_over.load(Ordering::Relaxed) {
            let (kind, shape, name) = all[written % all.len()];
            written += 1;
            management.put(shaped(kind, (&cluster, name), shape, written));
            std::thread::sleep(PAUSE);
        }
        written
    })
}

/// The watched kinds with an object in this namespace that the controller reported as unreadable. The report shows that
/// the controller received the object.
pub fn reported(log: &Path, namespace: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(log).expect("the controller's log");
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let skipped = lines.filter_map(|line: Value| {
        let fields = &line["fields"];
        let is_skipped = fields["message"] == "cannot use an object";
        let kind = fields["kind"].as_str()?.to_owned();
        (is_skipped && fields["namespace"] == namespace).then_some(kind)
    });
    skipped.collect()
}

/// An object of this kind that is different in each write.
fn shaped(kind: (&str, &str), (cluster, name): (&str, &str), shape: Shape, write: usize) -> Value {
    let is_secret = kind.1 == "Secret";
    // If the object is a Secret, use the name of the Cluster's kubeconfig Secret.
    let full_name = format!("{name}-kubeconfig");
    let (part, own_name) = if is_secret {
        ("data", full_name.as_str())
    } else {
        ("spec", name)
    };
    let of_cluster = if kind == KUBELET_AUTHENTICATION {
        name
    } else {
        cluster
    };
    // A Machine with a field of the wrong type does not have a config. Therefore, a different Machine refers to the
    // config with a field of the wrong type.
    let config = match shape {
        Shape::Nested => "wrong",
        _ => name,
    };
    let spec = json!({
        "clusterName": of_cluster,
        "authorizedAttestors": ["aws"],
        "autoApproveBindings": "Report",
        "bootstrap": {
            "configRef": reference(BOOTSTRAP_GROUP, "KubeadmConfig", config),
            "dataSecretName": name,
        },
    });
    let fields = if is_secret {
        json!({"type": "cluster.x-k8s.io/secret", "data": {}})
    } else {
        json!({"spec": spec})
    };
    let mut object = object(kind, (cluster, cluster, own_name), fields);
    object["metadata"]["annotations"] = json!({"write": write.to_string()});
    match shape {
        Shape::Nested => object[part]["extra"] = nested(),
        Shape::Wrong => object[part] = nested(),
        Shape::Labels => {
            let labels = object["metadata"]["labels"]
                .as_object_mut()
                .expect("labels");
            labels.extend((0..LABELS).map(|number| (format!("l{number:05}"), json!(""))));
        }
        Shape::Long => object[part]["value"] = "x".repeat(LENGTH).into(),
    }
    object
}

fn nested() -> Value {
    (0..LEVELS).fold(json!(0), |inner, _| json!([inner]))
}
