//! The demo tells the story that it promises.

use kubelet_authenticator_tests::demo;

#[test]
fn the_embedded_demo_ends_as_told() {
    demo::tell(&[]);
}
