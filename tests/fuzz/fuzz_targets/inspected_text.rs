#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    kubelet_authenticator_fuzz::store::inspected_text(input);
});
