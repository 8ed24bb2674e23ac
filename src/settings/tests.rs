use super::*;

#[test]
fn probe() {
    for text in [
        "apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1\nkind: KubeletAuthenticatorConfiguration\nnodeNam: a\n",
        "nodeName: a\nnodeName: b\n",
        "nodeName: [a\nb: }",
        "nodeName: UPPER\n",
        "expirationSeconds: -1\n",
        "expirationSeconds: abc\n",
        "expirationSeconds: 5\n",
        "- a\n",
        "a: b\n---\nc: d",
        "nodeName: {a: b}\n",
        "",
        "nodeName: \"a\nb",
        "\tnodeName: a",
        "nodeName:\n",
        "~",
    ] {
        let result = std::panic::catch_unwind(|| file::parse(text, &Document::Extension));
        println!("{text:?} -> {result:?}");
    }
}
