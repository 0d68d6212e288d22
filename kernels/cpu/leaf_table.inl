// The table of one instruction set. Included inside its namespace, after the functions.

constexpr KernelTable make_table(Isa isa) {
  return {
      .isa = isa,
      .products = {{kTileRows, kBlockNumbers, pack_panel, pack_columns, matmul_part, gradient_part, nullptr}, bf16_products()},
      .attention = attention_task,
      .attention_grad = attention_grad_task,
      .pair_attention = pair_attention_task,
      .pair_attention_grad = pair_attention_grad_task,
      .listed = listed_row,
      .listed_grad = listed_gradient,
      .conv = conv_channels,
      .conv_grad = conv_gradients,
      .delta = delta_head,
      .delta_chunks = delta_chunks,
      .delta_grad = delta_grad,
      .rmsnorm_forward = rmsnorm_forward_rows,
      .rmsnorm_dx = rmsnorm_dx_rows,
      .rmsnorm_dweight = rmsnorm_dweight_cols,
      .rope = rope_rows,
      .swiglu_forward = swiglu_forward_rows,
      .swiglu_backward = swiglu_backward_rows,
      .logprob_forward = logprob_forward_rows,
      .logprob_backward = logprob_backward_rows,
      .sample = sample_row_range,
      .softmax_weights = softmax_weights_row,
      .adamw = adamw_range,
      .add = add_array,
      .scale = scale_array,
      .exponential = exp_array,
      .logarithm = log_array,
  };
}
