"""Models from other libraries: PyTorch, scikit-learn and Keras. Each library is imported when it is needed."""
