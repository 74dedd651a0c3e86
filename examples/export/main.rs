// A kernel exported as `layer`, with its weights built in:
//
//   convsmith export mb1ic8ih6oc16kh3ph1 --dir FWD_B --attr-post-ops relu --accuracy strict --name layer \
//       --threads 1 --weights w.npy -o layer
//   cp main.rs layer && rustc --edition 2021 -O -L native=layer -l static=layer layer/main.rs
mod layer;

fn numbers(bytes: usize) -> Vec<f32> {
    (0..bytes / 4).map(|i| (i * 7 % 5) as f32).collect()
}

fn main() {
    let src = numbers(layer::LAYER_SRC_BYTES);
    let bia = numbers(layer::LAYER_BIA_BYTES);
    let mut dst = numbers(layer::LAYER_DST_BYTES);
    unsafe {
        let code = layer::layer_check(
            src.as_ptr().cast(), src.len() * 4, bia.as_ptr().cast(), bia.len() * 4, dst.as_ptr().cast(), dst.len() * 4,
        );
        assert_eq!(code, 0, "{:?}", core::ffi::CStr::from_ptr(layer::layer_message(code)));
        layer::layer(src.as_ptr(), bia.as_ptr(), dst.as_mut_ptr());
    }
    println!("sum {}", dst.iter().sum::<f32>());
}
