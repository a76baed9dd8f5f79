"""Operators of ai.onnx.ml: classical models, as scikit-learn, XGBoost and LightGBM train them, and their features."""
