use std::path::Path;

use serde_json::{Map, Value, json};

use super::namespace;

/// A KubeletConfiguration for a machine without cgroups, swap accounting or iptables.
///
/// As on every node, clients authenticate with a certificate from the cluster's CA.
pub(super) fn standard(port: u16, runtime: &Path, ca: &Path) -> Map<String, Value> {
    let runtime = runtime.to_str().expect("TMPDIR is UTF-8");
    let configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": port,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": false },
            "x509": { "clientCAFile": ca },
        },
        "authorization": { "mode": "AlwaysAllow" },
        "rotateCertificates": false,
        "containerRuntimeEndpoint": format!("unix://{runtime}"),
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "failSwapOn": false,
        "featureGates": { "KubeletInUserNamespace": !namespace::is_root() },
        "localStorageCapacityIsolation": false,
        "makeIPTablesUtilChains": false,
        "oomScoreAdj": 0,
        "resolvConf": "",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    });
    let Value::Object(fields) = configuration else {
        unreachable!("the configuration is an object")
    };
    fields
}
