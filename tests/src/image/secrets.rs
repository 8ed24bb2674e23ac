//! The programs and settings with which an instance reads its bootstrap data from Secrets Manager.
//!
//! By default, Cluster API Provider AWS stores the bootstrap data in Secrets Manager. The user data of the instance
//! consists of two parts. The first part is a boothook, which reads the bootstrap data with the AWS CLI, writes a file,
//! and restarts cloud-init. The second part includes this file.

use std::net::SocketAddr;

use kubelet_authenticator_test_support::machine::MachineBuilder;
use kubelet_authenticator_test_support::moto::access_key;

use crate::cloud::{ACCOUNT, Cloud};

/// The feature flag that image-builder sets in its images for AWS. Without the flag, cloud-init fails at the included
/// file, which does not exist before the boothook has run.
const FEATURES: (&str, &str) = (
    "/usr/lib/python3/dist-packages/cloudinit/feature_overrides.py",
    "ERROR_ON_USER_DATA_FAILURE = False\n",
);

/// A program that implements the two AWS CLI commands in the boothook, with this endpoint, and with the access key of
/// the instance's account instead of the instance profile. Like the CLI, the program prints the binary value in base64,
/// and exits with 255 after an error of the service.
const CLI: &str = r#"#!/usr/bin/python3
import argparse, json, sys, urllib.error, urllib.request
operations = {"get-secret-value": "GetSecretValue", "delete-secret": "DeleteSecret"}
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("service", choices=["secretsmanager"])
parser.add_argument("operation", choices=operations)
parser.add_argument("--region", required=True)
parser.add_argument("--secret-id", required=True)
parser.add_argument("--output", choices=["text"])
parser.add_argument("--query", choices=["SecretBinary"])
parser.add_argument("--force-delete-without-recovery", action="store_true")
given = parser.parse_args()
request = {"SecretId": given.secret_id}
if given.force_delete_without_recovery:
    request["ForceDeleteWithoutRecovery"] = True
scope = "ACCESS_KEY/20260101/%s/secretsmanager/aws4_request" % given.region
headers = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=%s, SignedHeaders=host, Signature=0" % scope,
    "Content-Type": "application/x-amz-json-1.1",
    "X-Amz-Target": "secretsmanager." + operations[given.operation],
}
call = urllib.request.Request("ENDPOINT", json.dumps(request).encode(), headers)
try:
    answer = json.load(urllib.request.urlopen(call, timeout=60))
except urllib.error.URLError as error:
    sys.stderr.write("%s\n" % error)
    sys.exit(255)
print(answer[given.query] if given.query else json.dumps(answer))
"#;

/// Adds the AWS CLI and the feature flag of cloud-init to an image.
pub(super) fn with_reader(builder: MachineBuilder, cloud: &Cloud) -> MachineBuilder {
    let endpoint = cloud.moto().url();
    let address = endpoint.trim_start_matches("http://");
    let address: SocketAddr = address.parse().unwrap();
    let (key, _) = access_key(ACCOUNT);
    let cli = CLI
        .replace("ACCESS_KEY", &key)
        .replace("ENDPOINT", &endpoint);
    let (path, flag) = FEATURES;
    builder
        .file("/usr/bin/aws", 0o755, cli)
        .file(path, 0o644, flag)
        .reaches(address)
}
