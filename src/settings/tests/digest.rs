use super::World;

#[test]
fn the_digest_differs_for_different_settings() {
    let plain = World::new().file("").settings();
    let mut digests = vec![plain.digest("n")];
    for contents in [
        "nodeName: n1",
        "audience: n1",
        "providerID: a:///n1",
        "bootstrapKubeconfig: /n1",
        "stateDirectory: /n1",
        "expirationSeconds: 600",
        "tpm: {hostName: n1}",
        "tpm: {pcrs: [0]}",
        "tpm: {pcrs: [0, 1]}",
    ] {
        digests.push(World::new().file(contents).settings().digest("n"));
    }
    digests.push(plain.digest("another name"));
    digests.sort();
    digests.dedup();

    assert_eq!(digests.len(), 11);
    assert_eq!(
        plain.digest("n"),
        World::new().file("nodeName: \"\"").settings().digest("n")
    );
}
